// Gated activation of the rows of a contiguous (rows, 2 * width) array: one vector of the output per thread.
#include "activations.cuh"
#include "common.cuh"

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    gated_activation(const T *__restrict__ input, T *__restrict__ output, long long rows, int width, int activation,
                     bool gate_first) {
  constexpr int SIZE = VECTOR<T>;
  const auto [row, begin] = VectorOfRow<T>();
  if (row >= rows || begin >= width) return;
  const T *first = input + 2 * row * width, *second = first + width;
  const uint4 gates = load_vector<ALIGNED>(gate_first ? first : second, begin, width);
  const uint4 others = load_vector<ALIGNED>(gate_first ? second : first, begin, width);
  float values[SIZE], factors[SIZE];
  to_floats<T>(values, gates);
  to_floats<T>(factors, others);
  activate<T>(values, activation);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) values[i] *= factors[i];
  store_vector<ALIGNED>(output + row * width, begin, width, values);
}

// The gradients of both halves, from that of the output.
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    gated_activation_backward(const T *__restrict__ grad_output, const T *__restrict__ input,
                              T *__restrict__ grad_input, long long rows, int width, int activation, bool gate_first) {
  constexpr int SIZE = VECTOR<T>;
  const auto [row, begin] = VectorOfRow<T>();
  if (row >= rows || begin >= width) return;
  const long long gate = (2 * row + (gate_first ? 0 : 1)) * width, other = (2 * row + (gate_first ? 1 : 0)) * width;
  float grads[SIZE], gates[SIZE], factors[SIZE], of_gate[SIZE];
  to_floats<T>(grads, load_vector<ALIGNED>(grad_output + row * width, begin, width));
  to_floats<T>(gates, load_vector<ALIGNED>(input + gate, begin, width));
  to_floats<T>(factors, load_vector<ALIGNED>(input + other, begin, width));
#pragma unroll
  for (int i = 0; i < SIZE; ++i) of_gate[i] = gates[i];
  differentiate<T>(of_gate, activation);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) of_gate[i] *= grads[i] * factors[i];
  activate<T>(gates, activation);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) grads[i] *= gates[i];
  store_vector<ALIGNED>(grad_input + gate, begin, width, of_gate);
  store_vector<ALIGNED>(grad_input + other, begin, width, grads);
}
