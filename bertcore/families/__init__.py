"""The families: a module or a folder each, named after its model_type, with _ for -; variants stand beside it."""
