// Activation functions of input + bias: pointwise.cuh and activations.cuh have the forward.
#include "column_sums.cuh"
#include "pointwise.cuh"

// grad_input = grad_output * derivative(input + bias): one vector per thread.
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(POINTWISE_THREADS)
    activation_backward(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ bias,
                        T *__restrict__ grad_input, long long count, unsigned width, int activation) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = (long long)blockIdx.x * POINTWISE_THREADS + threadIdx.x;
  const long long begin = index * SIZE - (ALIGNED ? 0 : misalignment(input));
  if (begin >= count) return;
  const uint4 source = load_vector<ALIGNED>(input, begin, count);
  const uint4 incoming = load_vector<ALIGNED>(grad_output, begin, count);
  float values[SIZE], grads[SIZE];
  to_floats<T>(values, source);
  to_floats<T>(grads, incoming);
  if (bias != nullptr) add_bias(values, bias, begin, width);
  differentiate<T>(values, activation);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) values[i] *= grads[i];
  store_vector<ALIGNED>(grad_input, begin, count, values);
}
