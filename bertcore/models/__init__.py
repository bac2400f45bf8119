"""Models: what a family may vary, the families, and the doors through which they are loaded and called."""
