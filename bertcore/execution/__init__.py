"""The executors of an encoder: `eager` by operation or as programs on the CPU, `graphs` as CUDA graphs."""
