// Activation functions of input + bias: pointwise.cuh and activations.cuh have it all.
#include "pointwise.cuh"
