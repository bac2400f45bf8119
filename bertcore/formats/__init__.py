"""Formats of other runtimes: GGUF, read and written, and ONNX, written."""
