// Activation functions of input + bias: pointwise.cuh and activations.cuh have the forward.
#include "column_sums.cuh"
#include "pointwise.cuh"

// grad_input = grad_output * derivative(input + bias): an element to a thread.
template <class T>
__global__ void __launch_bounds__(POINTWISE_THREADS)
    activation_backward(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ bias,
                        T *__restrict__ grad_input, long long count, unsigned width, int activation) {
  const long long i = (long long)blockIdx.x * POINTWISE_THREADS + threadIdx.x;
  if (i >= count) return;
  const float x = to_float(input[i]) + (bias == nullptr ? 0.f : to_float(bias[i % width]));
  grad_input[i] = from_float<T>(to_float(grad_output[i]) * derivative_of(x, activation));
}
