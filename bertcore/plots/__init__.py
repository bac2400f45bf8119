"""Pictures of models and of their training: a module for each, whose function returns a matplotlib figure."""
