// output = activation(input + bias), element by element; bias, which may be null, is along the last axis of `width`
// elements.
#include "activations.cuh"
#include "common.cuh"

constexpr int POINTWISE_THREADS = 256;
constexpr int POINTWISE_VECTORS = 2;  // per thread: 64 KiB in flight on a full multiprocessor

// values[i] += bias[(begin + i) % width], for begin + i >= 0
template <class T>
__device__ __forceinline__ void add_bias(float (&values)[VECTOR<T>], const T *bias, long long begin, unsigned width) {
  constexpr int SIZE = VECTOR<T>;
  const long long start = begin < 0 ? 0 : begin;
  unsigned column = start <= 0xffffffffll ? (unsigned)start % width : (unsigned)(start % width);
  if (begin >= 0 && column + SIZE <= width) {
    float shifts[SIZE];
    to_floats<T>(shifts, load_packed(bias, column, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] += shifts[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    if (begin + i < 0) continue;
    values[i] += to_float(bias[column]);
    column = column + 1 == width ? 0 : column + 1;
  }
}

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(POINTWISE_THREADS)
    pointwise(const T *__restrict__ input, const T *__restrict__ bias, T *__restrict__ output, long long count,
              unsigned width, int activation) {
  constexpr int SIZE = VECTOR<T>;
  const long long first = (long long)blockIdx.x * POINTWISE_VECTORS * POINTWISE_THREADS + threadIdx.x;
  const long long begin = first * SIZE - (ALIGNED ? 0 : misalignment(input));
  constexpr int STEP = POINTWISE_THREADS * SIZE;
  uint4 vectors[POINTWISE_VECTORS];
#pragma unroll
  for (int k = 0; k < POINTWISE_VECTORS; ++k)
    if (begin + k * STEP < count) vectors[k] = load_vector<ALIGNED>(input, begin + k * STEP, count);
#pragma unroll
  for (int k = 0; k < POINTWISE_VECTORS; ++k) {
    if (begin + k * STEP >= count) return;
    float values[SIZE];
    to_floats<T>(values, vectors[k]);
    if (bias != nullptr) add_bias(values, bias, begin + k * STEP, width);
    activate<T>(values, activation);
    store_vector<ALIGNED>(output, begin + k * STEP, count, values);
  }
}
