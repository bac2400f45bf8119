// GELU of input + bias, exact (GeluErf) or by tanh (GeluTanh): pointwise.cuh and activations.cuh have it all.
#include "pointwise.cuh"
