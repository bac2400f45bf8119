"""The dtypes that a model can be loaded in. Imports nothing: `bertcore --help` reads it."""

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8")
