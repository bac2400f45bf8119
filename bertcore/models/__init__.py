"""Models: the code that families share, and the classes that load and call models."""
