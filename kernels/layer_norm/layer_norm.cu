// Layer norm of the rows of a contiguous (rows, width) array, of input + residual where there is a residual.
// Mean, then the variance from the deviations: E[x^2] - mean^2 would cancel when the mean is large.
#include "rows.cuh"

// (value - mean) * scale * weight + bias for one vector of a row that begins at `begin`; weight and bias may be null.
template <class T, class Index>
__device__ __forceinline__ void normalise(float (&values)[VECTOR<T>], float mean, float scale, const T *weight,
                                          const T *bias, Index begin, int width) {
  constexpr int SIZE = VECTOR<T>;
  float weights[SIZE], shifts[SIZE];
  if (weight != nullptr) to_floats<T>(weights, load_packed(weight, begin, width, 0.f));
  if (bias != nullptr) to_floats<T>(shifts, load_packed(bias, begin, width, 0.f));
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    values[i] = (values[i] - mean) * scale;
    if (weight != nullptr) values[i] *= weights[i];
    if (bias != nullptr) values[i] += shifts[i];
  }
}

// The row stays in registers: one read of input and residual, one write. The bounds allow 128 registers a thread; left
// alone, ptxas spills short rows on sm_120 to fit more threads.
template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    layer_norm_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                    const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps) {
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group: nobody waits for it
  const T *source = input + index * width;
  RegisterRow<T, GROUP, ITEMS> row(width, misalignment(source));
  row.load(source, 0.f);
  if (residual != nullptr) row.add(residual + index * width);
  float sum = 0.f;
  row.each([&](int k, int i) { sum += row.values[k][i]; });
  const float mean = group_reduce<Sum, GROUP>(sum) / width;
  float squares = 0.f;
  row.each([&](int k, int i) {
    const float deviation = row.inside(k, i) ? row.values[k][i] - mean : 0.f;
    squares += deviation * deviation;
  });
  const float scale = 1.f / sqrtf(group_reduce<Sum, GROUP>(squares) / width + eps);
#pragma unroll
  for (int k = 0; k < row.VECTORS; ++k) normalise(row.values[k], mean, scale, weight, bias, row.begin(k), width);
  row.store(output + index * width);
}

// Rows too long for registers are read three times, mostly from the L2 cache.
template <class T, int GROUP>
__global__ void __launch_bounds__(GROUP)
    layer_norm_long_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                         const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps) {
  constexpr int SIZE = VECTOR<T>;
  const long long start = blockIdx.x * (long long)width;
  const int offset = misalignment(input + start);
  const auto load = [&](float (&values)[SIZE], long long begin) {
    to_floats<T>(values, load_packed(input + start, begin, width, 0.f));
    if (residual == nullptr) return;
    float others[SIZE];
    to_floats<T>(others, load_packed(residual + start, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] += others[i];
  };
  float values[SIZE], sum = 0.f, squares = 0.f;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    load(values, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sum += values[i];
  });
  const float mean = group_reduce<Sum, GROUP>(sum) / width;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    load(values, begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      const bool inside = begin + i >= 0 && begin + i < width;
      squares += inside ? (values[i] - mean) * (values[i] - mean) : 0.f;
    }
  });
  const float scale = 1.f / sqrtf(group_reduce<Sum, GROUP>(squares) / width + eps);
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    load(values, begin);
    normalise(values, mean, scale, weight, bias, begin, width);
    store_vector(output + start, begin, width, values);
  });
}
