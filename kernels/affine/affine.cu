// output = (input + residual) * weight + bias of contiguous rows: a vector of the output to a thread. residual may be
// null; weight and bias have an element for each column.
#include "common.cuh"

template <class T>
__global__ void __launch_bounds__(256)
    affine_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                const T *__restrict__ bias, T *__restrict__ output, long long rows, int width) {
  constexpr int SIZE = VECTOR<T>;
  const int vectors = (width + SIZE - 1) / SIZE;
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long row = index / vectors;
  const int begin = (int)(index % vectors) * SIZE;
  if (row >= rows) return;
  float values[SIZE], others[SIZE], shifts[SIZE];
  to_floats<T>(values, load_packed(input + row * width, begin, width, 0.f));
  if (residual != nullptr) {
    to_floats<T>(others, load_packed(residual + row * width, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] += others[i];
  }
  to_floats<T>(others, load_packed(weight, begin, width, 0.f));
  to_floats<T>(shifts, load_packed(bias, begin, width, 0.f));
#pragma unroll
  for (int i = 0; i < SIZE; ++i) values[i] = fmaf(values[i], others[i], shifts[i]);
  store_vector(output + row * width, begin, width, values);
}
