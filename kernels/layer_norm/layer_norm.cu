// Layer norm of rows: see norms.cuh and norms_backward.cuh.
#include "norms_backward.cuh"
