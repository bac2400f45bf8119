// Layer norm of rows: norms.cuh has it all.
#include "norms.cuh"
