"""The dtypes that a model can be loaded in. Imports nothing: `bertcore --help` reads it."""

INT8 = ("int8", "int8_weight_only")
DTYPES = ("float32", "float64", "float16", "bfloat16", *INT8)
