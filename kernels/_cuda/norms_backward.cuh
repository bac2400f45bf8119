// The gradients of norms.cuh: one launch for the input's, which leaves each row's statistics, one for partial sums of
// the parameters'. A row is read several times: after the first from the L1 or L2 cache.
#include "column_sums.cuh"
#include "norms.cuh"

// What a row is normalised by: (x * factor - mean) * scale, x = input + residual. The factor is 1 but for rows whose
// squares overflow.
struct RowStatistics {
  float mean, scale, factor;
};

template <class T>
__device__ __forceinline__ void load_sum(float (&values)[VECTOR<T>], const T *input, const T *residual, long long begin,
                                         int width) {
  to_floats<T>(values, load_packed(input, begin, width, 0.f));
  if (residual == nullptr) return;
  float others[VECTOR<T>];
  to_floats<T>(others, load_packed(residual, begin, width, 0.f));
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) values[i] += others[i];
}

template <class T, int GROUP>
__device__ __forceinline__ RowStatistics statistics_of(const T *input, const T *residual, int width, float eps,
                                                       bool centred) {
  const int offset = misalignment(input);
  // The sum over the row of the deviations from `mean`, or of their squares.
  const auto sum = [&](float mean, float factor, bool squared) {
    float total = 0.f;
    each_vector<T, GROUP>(width, offset, [&](long long begin) {
      float values[VECTOR<T>];
      load_sum(values, input, residual, begin, width);
#pragma unroll
      for (int i = 0; i < VECTOR<T>; ++i) {
        const float deviation = begin + i >= 0 && begin + i < width ? values[i] * factor - mean : 0.f;
        total += squared ? deviation * deviation : deviation;
      }
    });
    return group_reduce<Sum, GROUP>(total);
  };
  RowStatistics row = {0.f, 0.f, 1.f};
  float squares = 0.f;
#pragma unroll 1
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (centred) {
      row.mean = sum(0.f, row.factor, false) / width;
      row.mean += sum(row.mean, row.factor, false) / width;  // what rounding left of it
    }
    squares = sum(row.mean, row.factor, true);
    if (squares < INFINITY || attempt) break;
    row.factor = NORM_SHRINK;
    row.mean = 0.f;
    eps = eps > 0.f ? LEAST_EPS : 0.f;
  }
  row.scale = 1.f / sqrtf(squares / width + eps);
  return row;
}

// grad_input = (g - mean(g) - n * mean(g * n)) * scale, n the normalised row and g = grad_output * weight; without
// mean(g) where the norm is not centred. The bounds allow 128 registers a thread; left alone, ptxas spills half precision
// on sm_100 and sm_120.
template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    norm_backward_rows(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ residual,
                       const T *__restrict__ weight, T *__restrict__ grad_input, RowStatistics *__restrict__ statistics,
                       long long rows, int width, float eps, bool centred) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group: nobody waits for it
  const T *source = input + index * width, *added = residual == nullptr ? nullptr : residual + index * width;
  const T *grad = grad_output + index * width;
  const RowStatistics row = statistics_of<T, GROUP>(source, added, width, eps, centred);
  // The gradient of the normalised elements from `begin` on, and these; zeros outside the row.
  const auto load = [&](float (&g)[SIZE], float (&normalised)[SIZE], long long begin) {
    float weights[SIZE];
    to_floats<T>(g, load_packed(grad, begin, width, 0.f));
    load_sum(normalised, source, added, begin, width);
    if (weight != nullptr) to_floats<T>(weights, load_packed(weight, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      const bool inside = begin + i >= 0 && begin + i < width;
      normalised[i] = inside ? (normalised[i] * row.factor - row.mean) * row.scale : 0.f;
      if (weight != nullptr) g[i] *= weights[i];
    }
  };
  const int offset = misalignment(source);
  float mean = 0.f, along = 0.f;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float g[SIZE], normalised[SIZE];
    load(g, normalised, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) mean += g[i], along += g[i] * normalised[i];
  });
  mean = centred ? group_reduce<Sum, GROUP>(mean) / width : 0.f;
  along = group_reduce<Sum, GROUP>(along) / width;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float g[SIZE], normalised[SIZE];
    load(g, normalised, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) g[i] = (g[i] - mean - normalised[i] * along) * row.scale * row.factor;
    store_vector(grad_input + index * width, begin, width, g);
  });
  if (threadIdx.x % GROUP == 0) statistics[index] = row;
}

// Sums over a chunk of rows, (chunks, width): of grad_output * normalised, and of grad_output.
template <class T>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_LANES)
    norm_backward_columns(const T *__restrict__ grad_output, const T *__restrict__ input,
                          const T *__restrict__ residual, const RowStatistics *__restrict__ statistics,
                          float *__restrict__ weight_sums, float *__restrict__ bias_sums, long long rows, int width) {
  SHARED_ARRAY(float, room, SUM_LANES * SUM_COLUMNS);
  const int column = blockIdx.y * SUM_COLUMNS + threadIdx.x;
  const long long first = (long long)blockIdx.x * SUM_CHUNK, last = first + SUM_CHUNK < rows ? first + SUM_CHUNK : rows;
  float of_weight = 0.f, of_bias = 0.f;
  if (column < width)
    for (long long row = first + threadIdx.y; row < last; row += SUM_LANES) {
      const long long place = row * width + column;
      const RowStatistics by = statistics[row];
      const float g = to_float(grad_output[place]);
      const float x = to_float(input[place]) + (residual == nullptr ? 0.f : to_float(residual[place]));
      of_weight += g * ((x * by.factor - by.mean) * by.scale);
      of_bias += g;
    }
  of_weight = sum_lanes(of_weight, room);
  of_bias = sum_lanes(of_bias, room);
  if (threadIdx.y != 0 || column >= width) return;
  weight_sums[blockIdx.x * (long long)width + column] = of_weight;
  bias_sums[blockIdx.x * (long long)width + column] = of_bias;
}
