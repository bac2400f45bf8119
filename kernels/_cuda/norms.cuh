// Layer norm and RMS norm of the rows of a contiguous (rows, width) array, of input + residual if residual is not null.
// Mean (0 if not `centred`), then the variance from the deviations: E[x^2] - mean^2 would cancel when the mean is large.
#pragma once
#include "rows.cuh"

constexpr float NORM_SHRINK = 8.271806125530277e-25f;  // 2^-80
constexpr float LEAST_EPS = 1.1754943508222875e-38f;   // 2^-126

// How a row is normalised: (x * factor - mean) * scale, x = input + residual. The factor is 1 except for rows whose
// squares overflow: the result does not depend on scale, and eps is negligible for such rows.
struct RowStatistics {
  float mean, scale, factor;
};

// ---- aligned rows -----------------------------------------------------------------------------------------------

// Replaces an aligned row, input + residual, by its deviations from its mean, 0 beyond its end; share = 1 / width.
// Returns false if the squares overflow: then call it `again`, which scales the row down.
template <class T, int GROUP, int ITEMS>
__device__ __forceinline__ bool centre(RegisterRow<T, GROUP, ITEMS> &row, RowStatistics &by, int width, float share,
                                       float eps, bool centred, bool again) {
  using Row = RegisterRow<T, GROUP, ITEMS>;
  by = {0.f, 0.f, 1.f};
  if (again) {
    Row::each([&](int k, int i) { row.values[k][i] *= NORM_SHRINK; });
    by.factor = NORM_SHRINK;
    eps = eps > 0.f ? LEAST_EPS : 0.f;
  }
  if (centred) {
    float sum = 0.f, rest = 0.f;
    Row::each([&](int k, int i) { sum += row.values[k][i]; });
    by.mean = group_reduce<Sum, GROUP>(sum) * share;
    // The mean of the deviations is the rounding error; equal numbers have no other deviation.
    Row::each([&](int k, int i) { rest += row.values[k][i] - (Row::inside(k, width) ? by.mean : 0.f); });
    by.mean += group_reduce<Sum, GROUP>(rest) * share;
    Row::each([&](int k, int i) { row.values[k][i] -= Row::inside(k, width) ? by.mean : 0.f; });
  }
  float squares = 0.f;
  Row::each([&](int k, int i) { squares = fmaf(row.values[k][i], row.values[k][i], squares); });
  squares = group_reduce<Sum, GROUP>(squares);
  by.scale = rsqrtf(squares * share + eps);
  return again || squares < INFINITY;
}

// Dropout of the input: none here; dropout_layer_norm.cu has one.
struct NoDropout {
  // A bit for each of the thread's elements of a row: whether it is kept.
  template <class Row> __device__ __forceinline__ unsigned draw(long long, int) const { return ~0u; }
  template <class Row> __device__ __forceinline__ void drop(Row &, unsigned) const {}
};

// One read of input and residual, one write; weight and bias stay in registers from row to row.
template <class T, int GROUP, int ITEMS, class Dropout>
__device__ __forceinline__ void normalise_rows(const T *input, const T *residual, const T *weight, const T *bias,
                                               T *output, long long rows, int width, float eps, bool centred,
                                               const Dropout &dropout) {
  using Packed = PackedRow<T, GROUP, ITEMS>;
  using Row = RegisterRow<T, GROUP, ITEMS>;
  const Row w(Packed(weight, width, 1.f, weight != nullptr)), b(Packed(bias, width, 0.f, bias != nullptr));
  const float share = 1.f / width;
  each_row<GROUP>(rows, [&](long long index, bool again) {
    const unsigned kept = dropout.template draw<Row>(index, width);  // first, since loaded values take registers
    const Packed packed(input + index * width, width, 0.f);
    const Packed added(residual + index * width, width, 0.f, residual != nullptr);
    Row row(packed);
    dropout.drop(row, kept);
    if (residual != nullptr) row.add(added);
    RowStatistics by;
    if (!centre(row, by, width, share, eps, centred, again)) return false;
    Row::each([&](int k, int i) {
      row.values[k][i] = fmaf(row.values[k][i] * by.scale, w.values[k][i], b.values[k][i]);
    });
    row.store(output + index * width, width);
    return true;
  });
}

template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    norm_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
              const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps, bool centred) {
  normalise_rows<T, GROUP, ITEMS>(input, residual, weight, bias, output, rows, width, eps, centred, NoDropout());
}

// ---- any rows, read several times, after the first mostly from the L1 or L2 cache ---------------------------------

template <class T>
__device__ __forceinline__ void load_sum(float (&values)[VECTOR<T>], const T *input, const T *residual, int begin,
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
    each_vector<T, GROUP>(width, offset, [&](int begin) {
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
      row.mean += sum(row.mean, row.factor, false) / width;  // corrects its rounding
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

template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    norm_any_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                  const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps,
                  bool centred) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *source = input + index * width, *added = residual == nullptr ? nullptr : residual + index * width;
  const RowStatistics by = statistics_of<T, GROUP>(source, added, width, eps, centred);
  each_vector<T, GROUP>(width, misalignment(source), [&](int begin) {
    float values[SIZE], weights[SIZE], shifts[SIZE];
    load_sum(values, source, added, begin, width);
    if (weight != nullptr) to_floats<T>(weights, load_packed(weight, begin, width, 0.f));
    if (bias != nullptr) to_floats<T>(shifts, load_packed(bias, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      values[i] = (values[i] * by.factor - by.mean) * by.scale;
      if (weight != nullptr) values[i] *= weights[i];
      if (bias != nullptr) values[i] += shifts[i];
    }
    store_vector(output + index * width, begin, width, values);
  });
}
