// RMS norm of rows: norms.cuh and norms_backward.cuh have it all.
#include "norms_backward.cuh"
