"""Models: what families share, and the classes that load and call them."""
