"""The families: a module or folder for each, named after its model_type, with _ for -; variants share its module."""
