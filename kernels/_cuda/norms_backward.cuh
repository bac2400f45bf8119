// The gradients of norms.cuh: one launch for the input's gradient and each row's statistics, one for partial sums of the
// parameters' gradients. A row is read several times: after the first from the L1 or L2 cache.
#include "column_sums.cuh"
#include "norms.cuh"

// grad_input = (g - mean(g) - n * mean(g * n)) * scale, n the normalised row and g = grad_output * weight; without
// mean(g) if the norm is not centred.

// For aligned rows; store(index, g, by, kept) writes the gradient `g` of the normalised sum.
template <class T, int GROUP, int ITEMS, class Dropout, class Store>
__device__ __forceinline__ void differentiate_rows(const T *grad_output, const T *input, const T *residual,
                                                   const T *weight, long long rows, int width, float eps, bool centred,
                                                   const Dropout &dropout, Store store) {
  using Packed = PackedRow<T, GROUP, ITEMS>;
  using Row = RegisterRow<T, GROUP, ITEMS>;
  const Row w(Packed(weight, width, 1.f, weight != nullptr));
  const float share = 1.f / width;
  each_row<GROUP>(rows, [&](long long index, bool again) {
    const unsigned kept = dropout.template draw<Row>(index, width);
    const Packed packed(input + index * width, width, 0.f);
    const Packed added(residual + index * width, width, 0.f, residual != nullptr);
    const Packed grads(grad_output + index * width, width, 0.f);
    Row row(packed);
    dropout.drop(row, kept);
    if (residual != nullptr) row.add(added);
    RowStatistics by;
    if (!centre(row, by, width, share, eps, centred, again)) return false;
    Row g(grads);
    float mean = 0.f, along = 0.f;
    Row::each([&](int k, int i) {
      g.values[k][i] *= w.values[k][i];
      mean += g.values[k][i];
      row.values[k][i] *= by.scale;
      along = fmaf(g.values[k][i], row.values[k][i], along);
    });
    mean = centred ? group_reduce<Sum, GROUP>(mean) * share : 0.f;
    along = group_reduce<Sum, GROUP>(along) * share;
    const float scale = by.scale * by.factor;
    Row::each([&](int k, int i) {
      g.values[k][i] = fmaf(-along, row.values[k][i], g.values[k][i] - mean) * scale;
    });
    store(index, g, by, kept);
    return true;
  });
}

template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    norm_backward_rows(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ residual,
                       const T *__restrict__ weight, T *__restrict__ grad_input, RowStatistics *__restrict__ statistics,
                       long long rows, int width, float eps, bool centred) {
  const auto store = [&](long long index, const RegisterRow<T, GROUP, ITEMS> &g, const RowStatistics &by, unsigned) {
    g.store(grad_input + index * width, width);
    if (threadIdx.x % GROUP == 0) statistics[index] = by;
  };
  differentiate_rows<T, GROUP, ITEMS>(grad_output, input, residual, weight, rows, width, eps, centred, NoDropout(),
                                      store);
}

template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    norm_backward_any_rows(const T *__restrict__ grad_output, const T *__restrict__ input, const T *__restrict__ residual,
                       const T *__restrict__ weight, T *__restrict__ grad_input, RowStatistics *__restrict__ statistics,
                       long long rows, int width, float eps, bool centred) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *source = input + index * width, *added = residual == nullptr ? nullptr : residual + index * width;
  const T *grad = grad_output + index * width;
  const RowStatistics row = statistics_of<T, GROUP>(source, added, width, eps, centred);
  // The gradient of the normalised elements from `begin` on, and these; zeros outside the row.
  const auto load = [&](float (&g)[SIZE], float (&normalised)[SIZE], int begin) {
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
  each_vector<T, GROUP>(width, offset, [&](int begin) {
    float g[SIZE], normalised[SIZE];
    load(g, normalised, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) mean += g[i], along += g[i] * normalised[i];
  });
  mean = centred ? group_reduce<Sum, GROUP>(mean) / width : 0.f;
  along = group_reduce<Sum, GROUP>(along) / width;
  each_vector<T, GROUP>(width, offset, [&](int begin) {
    float g[SIZE], normalised[SIZE];
    load(g, normalised, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) g[i] = (g[i] - mean - normalised[i] * along) * row.scale * row.factor;
    store_vector(grad_input + index * width, begin, width, g);
  });
  if (threadIdx.x % GROUP == 0) statistics[index] = row;
}

// Sums over a chunk of rows, (chunks, 2, width): of grad_output * normalised, and of grad_output. x(place): an element
// of the sum that was normalised.
template <class T, class Element>
__device__ __forceinline__ void sum_parameters(const T *grad_output, const RowStatistics *statistics, float *sums,
                                               long long rows, int width, Element x) {
  SHARED_ARRAY(float, room, SUM_LANES * SUM_COLUMNS);
  const int column = blockIdx.y * SUM_COLUMNS + threadIdx.x;
  const long long first = (long long)blockIdx.x * SUM_CHUNK, last = first + SUM_CHUNK < rows ? first + SUM_CHUNK : rows;
  float of_weight = 0.f, of_bias = 0.f;
  if (column < width)
    for (long long row = first + threadIdx.y; row < last; row += SUM_LANES) {
      const long long place = row * width + column;
      const RowStatistics by = statistics[row];
      const float g = to_float(grad_output[place]);
      of_weight += g * ((x(place) * by.factor - by.mean) * by.scale);
      of_bias += g;
    }
  of_weight = sum_lanes(of_weight, room);
  of_bias = sum_lanes(of_bias, room);
  if (threadIdx.y != 0 || column >= width) return;
  sums += blockIdx.x * 2ll * width + column;
  sums[0] = of_weight;
  sums[width] = of_bias;
}

template <class T>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_LANES)
    norm_backward_columns(const T *__restrict__ grad_output, const T *__restrict__ input,
                          const T *__restrict__ residual, const RowStatistics *__restrict__ statistics,
                          float *__restrict__ sums, long long rows, int width) {
  sum_parameters(grad_output, statistics, sums, rows, width, [&](long long place) {
    return to_float(input[place]) + (residual == nullptr ? 0.f : to_float(residual[place]));
  });
}
