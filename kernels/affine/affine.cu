// output = (input + residual) * weight + bias of contiguous rows: one vector of the output per thread. residual may be
// null; weight and bias have an element for each column.
#include "column_sums.cuh"

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    affine_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                const T *__restrict__ bias, T *__restrict__ output, long long rows, int width) {
  constexpr int SIZE = VECTOR<T>;
  const auto [row, begin] = VectorOfRow<T>();
  if (row >= rows || begin >= width) return;
  float values[SIZE], others[SIZE], shifts[SIZE];
  to_floats<T>(values, load_vector<ALIGNED>(input + row * width, begin, width));
  if (residual != nullptr) {
    to_floats<T>(others, load_vector<ALIGNED>(residual + row * width, begin, width));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] += others[i];
  }
  to_floats<T>(others, load_vector<ALIGNED>(weight, begin, width));
  to_floats<T>(shifts, load_vector<ALIGNED>(bias, begin, width));
#pragma unroll
  for (int i = 0; i < SIZE; ++i) values[i] = fmaf(values[i], others[i], shifts[i]);
  store_vector<ALIGNED>(output + row * width, begin, width, values);
}

// grad_input = grad_output * weight, and sums over a chunk of rows, (chunks, width): of grad_output * x, x being input +
// residual, and of grad_output.
template <class T>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_LANES)
    affine_columns(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ residual,
                   const T *__restrict__ weight, T *__restrict__ grad_input, float *__restrict__ weight_sums,
                   float *__restrict__ bias_sums, long long rows, int width) {
  SHARED_ARRAY(float, room, SUM_LANES * SUM_COLUMNS);
  const int column = blockIdx.y * SUM_COLUMNS + threadIdx.x;
  const long long first = (long long)blockIdx.x * SUM_CHUNK, last = first + SUM_CHUNK < rows ? first + SUM_CHUNK : rows;
  float of_weight = 0.f, of_bias = 0.f;
  if (column < width) {
    const float factor = to_float(weight[column]);
    for (long long row = first + threadIdx.y; row < last; row += SUM_LANES) {
      const long long place = row * width + column;
      const float g = to_float(grad_output[place]);
      const float x = to_float(input[place]) + (residual == nullptr ? 0.f : to_float(residual[place]));
      grad_input[place] = from_float<T>(g * factor);
      of_weight += g * x;
      of_bias += g;
    }
  }
  of_weight = sum_lanes(of_weight, room);
  of_bias = sum_lanes(of_bias, room);
  if (threadIdx.y != 0 || column >= width) return;
  weight_sums[blockIdx.x * (long long)width + column] = of_weight;
  bias_sums[blockIdx.x * (long long)width + column] = of_bias;
}
