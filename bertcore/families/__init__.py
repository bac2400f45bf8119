"""The families: one module, or one folder, each; named after its model_type, with _ for -."""
