// Pooling of packed sequences. A block computes POOL_LANES vectors of columns of a sequence; its rows of threads add
// every POOL_ROWS-th token and are combined in their order, so that a sum's order depends only on its sequence.
#include "common.cuh"

constexpr int POOL_LANES = 32, POOL_ROWS = 8, POOL_BATCH = 4;  // the last: loads of a thread in flight
constexpr int CLS_MODE = 0, MAX_MODE = 1, SQRT_MODE = 3, WEIGHTED_MODE = 4, LAST_MODE = 5;  // indices in MODES

// A sequence's tokens, those of them that count, and this thread's columns.
template <class T> struct Pooled {
  int start, first, stop, column;

  __device__ __forceinline__ Pooled(const int *offsets, int tokens, int mode, int skipped)
      : column((blockIdx.y * POOL_LANES + threadIdx.x) * VECTOR<T>) {
    start = min(max(offsets[blockIdx.x], 0), tokens);  // they are unchecked
    stop = min(max(offsets[blockIdx.x + 1], start), tokens);
    first = stop - start > skipped ? start + skipped : stop;
    if (mode == CLS_MODE) stop = min(first + 1, stop);
    if (mode == LAST_MODE) first = max(first, stop - 1);
  }

  __device__ __forceinline__ int count() const { return stop - first; }
  __device__ __forceinline__ float weight(int token, int mode) const {
    return mode == WEIGHTED_MODE ? (float)(token - start + 1) : 1.f;
  }

  // The divisor of the weighted sum.
  __device__ __forceinline__ float divisor(int mode) const {
    if (mode == SQRT_MODE) return sqrtf((float)count());
    return mode == WEIGHTED_MODE ? 0.5f * count() * ((float)(first - start + 1) + (float)(stop - start)) : count();
  }

  // function(token, values) for each token of this thread that counts.
  template <class Function> __device__ __forceinline__ void each(const T *input, int width, Function function) const {
    for (int batch = first + threadIdx.y; batch < stop; batch += POOL_ROWS * POOL_BATCH) {
      uint4 vectors[POOL_BATCH];
#pragma unroll
      for (int k = 0; k < POOL_BATCH; ++k) {
        const int token = min(batch + k * POOL_ROWS, stop - 1);
        vectors[k] = load_packed(input + (long long)token * width, column, width, 0.f);
      }
#pragma unroll
      for (int k = 0; k < POOL_BATCH; ++k) {
        float values[VECTOR<T>];
        to_floats<T>(values, vectors[k]);
        if (batch + k * POOL_ROWS < stop) function(batch + k * POOL_ROWS, values);
      }
    }
  }
};

// The index of element i of a lane's vector in shared memory; `row`: the threadIdx.y that it comes from.
template <class T> __device__ __forceinline__ int pool_place(int row, int i) {
  return (row * VECTOR<T> + i) * POOL_LANES + threadIdx.x;
}

template <class T>
__global__ void __launch_bounds__(POOL_LANES * POOL_ROWS)
    pool_sums(const T *__restrict__ input, const int *__restrict__ offsets, float *__restrict__ output, int tokens,
              int width, int mode, int skipped) {
  constexpr int SIZE = VECTOR<T>;
  SHARED_ARRAY(float, room, POOL_ROWS * POOL_LANES * SIZE);
  const Pooled<T> pooled(offsets, tokens, mode, skipped);
  float sums[SIZE] = {};
  pooled.each(input, width, [&](int token, const float (&values)[SIZE]) {
    const float weight = pooled.weight(token, mode);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sums[i] = fmaf(values[i], weight, sums[i]);
  });
#pragma unroll
  for (int i = 0; i < SIZE; ++i) room[pool_place<T>(threadIdx.y, i)] = sums[i];
  __syncthreads();
  const float divisor = pooled.divisor(mode);
  for (int i = threadIdx.y; i < SIZE; i += POOL_ROWS) {
    float total = 0.f;
    for (int row = 0; row < POOL_ROWS; ++row) total += room[pool_place<T>(row, i)];
    if (pooled.column + i < width)
      output[blockIdx.x * (long long)width + pooled.column + i] = pooled.count() ? total / divisor : 0.f;
  }
}

template <class T>
__global__ void __launch_bounds__(POOL_LANES * POOL_ROWS)
    pool_sums_backward(const float *__restrict__ grad_output, const int *__restrict__ offsets,
                       T *__restrict__ grad_input, int tokens, int width, int mode, int skipped) {
  constexpr int SIZE = VECTOR<T>;
  const Pooled<T> whole(offsets, tokens, MAX_MODE, 0), pooled(offsets, tokens, mode, skipped);
  float grads[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i)
    grads[i] = pooled.column + i < width ? grad_output[blockIdx.x * (long long)width + pooled.column + i] : 0.f;
  const float factor = 1.f / pooled.divisor(mode);
  for (int token = whole.start + threadIdx.y; token < whole.stop; token += POOL_ROWS) {
    const bool counts = token >= pooled.first && token < pooled.stop;
    float values[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = counts ? grads[i] * factor * pooled.weight(token, mode) : 0.f;
    store_vector(grad_input + (long long)token * width, pooled.column, width, values);
  }
}

// The largest of a column and the first token that has it; a NaN is larger than all.
struct Peak {
  float value;
  int token;

  __device__ __forceinline__ bool is_below(float other) const { return value == value && !(other <= value); }
  __device__ __forceinline__ void take(float other, int at) {
    const bool below = is_below(other);
    value = below ? other : value;
    token = below ? at : token;
  }
  // For tokens in another order.
  __device__ __forceinline__ void take(const Peak &other) {
    if (is_below(other.value) || (other.token < token && !other.is_below(value))) *this = other;
  }
};

// function(i, peak) for the columns of its vector that this thread combines.
template <class T, class Function>
__device__ __forceinline__ void each_peak(const Pooled<T> &pooled, const T *input, int width, Function function) {
  constexpr int SIZE = VECTOR<T>;
  SHARED_ARRAY(float, values_of_rows, POOL_ROWS * POOL_LANES * SIZE);
  SHARED_ARRAY(int, tokens_of_rows, POOL_ROWS * POOL_LANES * SIZE);
  Peak peaks[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) peaks[i] = {-INFINITY, pooled.first};
  pooled.each(input, width, [&](int token, const float (&values)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) peaks[i].take(values[i], token);
  });
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    values_of_rows[pool_place<T>(threadIdx.y, i)] = peaks[i].value;
    tokens_of_rows[pool_place<T>(threadIdx.y, i)] = peaks[i].token;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < SIZE; i += POOL_ROWS) {
    Peak peak = {-INFINITY, pooled.first};
    for (int row = 0; row < POOL_ROWS; ++row)
      peak.take({values_of_rows[pool_place<T>(row, i)], tokens_of_rows[pool_place<T>(row, i)]});
    function(i, peak);
  }
}

template <class T>
__global__ void __launch_bounds__(POOL_LANES * POOL_ROWS, 2)
    pool_peaks(const T *__restrict__ input, const int *__restrict__ offsets, float *__restrict__ output, int tokens,
               int width, int skipped) {
  const Pooled<T> pooled(offsets, tokens, MAX_MODE, skipped);
  each_peak(pooled, input, width, [&](int i, const Peak &peak) {
    if (pooled.column + i < width)
      output[blockIdx.x * (long long)width + pooled.column + i] = pooled.count() ? peak.value : 0.f;
  });
}

// `grad_input` holds zeros.
template <class T>
__global__ void __launch_bounds__(POOL_LANES * POOL_ROWS, 2)
    pool_peaks_backward(const float *__restrict__ grad_output, const T *__restrict__ input,
                        const int *__restrict__ offsets, T *__restrict__ grad_input, int tokens, int width,
                        int skipped) {
  const Pooled<T> pooled(offsets, tokens, MAX_MODE, skipped);
  each_peak(pooled, input, width, [&](int i, const Peak &peak) {
    if (pooled.column + i < width && pooled.count())
      grad_input[(long long)peak.token * width + pooled.column + i] =
          from_float<T>(grad_output[blockIdx.x * (long long)width + pooled.column + i]);
  });
}
