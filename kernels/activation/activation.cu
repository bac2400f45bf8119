// Activation functions of every element: pointwise.cuh and activations.cuh have it all.
#include "pointwise.cuh"
