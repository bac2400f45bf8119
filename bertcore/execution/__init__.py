"""The executors of an encoder: `eager` by operation, `recorded` as programs on the CPU, `graphs` as CUDA graphs."""
