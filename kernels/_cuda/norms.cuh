// Layer norm and RMS norm of the rows of a contiguous (rows, width) array, of input + residual where there is one.
// Mean (0 if not `centred`), then the variance from the deviations: E[x^2] - mean^2 would cancel when the mean is large.
#include "rows.cuh"

constexpr float NORM_SHRINK = 8.271806125530277e-25f;  // 2^-80
constexpr float LEAST_EPS = 1.1754943508222875e-38f;   // 2^-126

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

// A row of any width, read three times, mostly from the L2 cache. Where its squares overflow it is scaled down: the
// result does not depend on scale, and eps is nothing beside a row so large.
template <class T, int GROUP>
__device__ __forceinline__ void norm_long_row(const T *__restrict__ input, const T *__restrict__ residual,
                                              const T *__restrict__ weight, const T *__restrict__ bias,
                                              T *__restrict__ output, int width, float eps, bool centred) {
  constexpr int SIZE = VECTOR<T>;
  const int offset = misalignment(input);
  float factor = 1.f;
  const auto load = [&](float (&values)[SIZE], long long begin) {
    float others[SIZE];
    to_floats<T>(values, load_packed(input, begin, width, 0.f));
    if (residual != nullptr) to_floats<T>(others, load_packed(residual, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = (residual != nullptr ? values[i] + others[i] : values[i]) * factor;
  };
  // The sum of the deviations from `mean`, or of their squares.
  const auto sum = [&](float mean, bool squared) {
    float total = 0.f;
    each_vector<T, GROUP>(width, offset, [&](long long begin) {
      float values[SIZE];
      load(values, begin);
#pragma unroll
      for (int i = 0; i < SIZE; ++i) {
        const float deviation = begin + i >= 0 && begin + i < width ? values[i] - mean : 0.f;
        total += squared ? deviation * deviation : deviation;
      }
    });
    return group_reduce<Sum, GROUP>(total);
  };
  const auto mean_of_row = [&] {
    const float rounded = sum(0.f, false) / width;
    return rounded + sum(rounded, false) / width;  // of equal numbers it is now exact
  };
  float mean = centred ? mean_of_row() : 0.f;
  float squares = sum(mean, true);
  if (!(squares < INFINITY)) {
    factor = NORM_SHRINK;
    mean = centred ? mean_of_row() : 0.f;
    squares = sum(mean, true);
    eps = eps > 0.f ? LEAST_EPS : 0.f;
  }
  const float scale = 1.f / sqrtf(squares / width + eps);
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float values[SIZE];
    load(values, begin);
    normalise(values, mean, scale, weight, bias, begin, width);
    store_vector(output, begin, width, values);
  });
}

// The row stays in registers: one read of input and residual, one write. The bounds allow 128 registers a thread; left
// alone, ptxas spills short rows on sm_120 to fit more threads. A row whose squares overflow is read again: to scale it
// in its registers would spill them.
template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    norm_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
              const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps, bool centred) {
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group: nobody waits for it
  const T *source = input + index * width, *added = residual == nullptr ? nullptr : residual + index * width;
  RegisterRow<T, GROUP, ITEMS> row(width, misalignment(source));
  row.load(source, 0.f);
  if (residual != nullptr) row.add(added);
  float mean = 0.f, squares = 0.f;
  if (centred) {
    row.each([&](int k, int i) { mean += row.values[k][i]; });
    mean = group_reduce<Sum, GROUP>(mean) / width;
    float rest = 0.f;  // what rounding left of the mean: of equal numbers it is all there is
    row.each([&](int k, int i) { rest += row.inside(k, i) ? row.values[k][i] - mean : 0.f; });
    mean += group_reduce<Sum, GROUP>(rest) / width;
  }
  row.each([&](int k, int i) {
    const float deviation = row.inside(k, i) ? row.values[k][i] - mean : 0.f;
    squares += deviation * deviation;
  });
  squares = group_reduce<Sum, GROUP>(squares);
  if (!(squares < INFINITY)) {
    norm_long_row<T, GROUP>(source, added, weight, bias, output + index * width, width, eps, centred);
    return;
  }
  const float scale = 1.f / sqrtf(squares / width + eps);
#pragma unroll
  for (int k = 0; k < row.VECTORS; ++k) normalise(row.values[k], mean, scale, weight, bias, row.begin(k), width);
  row.store(output + index * width);
}

// Rows too long for registers.
template <class T, int GROUP>
__global__ void __launch_bounds__(GROUP)
    norm_long_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                   const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps,
                   bool centred) {
  const long long start = blockIdx.x * (long long)width;
  const T *added = residual == nullptr ? nullptr : residual + start;
  norm_long_row<T, GROUP>(input + start, added, weight, bias, output + start, width, eps, centred);
}
