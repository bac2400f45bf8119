// Kernels over rows: GROUP threads (a warp, or a block) share one row of `width` elements.
//
// A row is cut into 16-byte vectors on the 16-byte boundaries of memory, so that rows of any width and start are read
// in whole vectors but for their ends. `offset` is how many elements the row's start lies beyond a boundary; the first
// vector then begins `offset` elements before the row. Thread t of the group has the vectors t, t + GROUP, ...
#include "common.cuh"

// Threads of a block: rows of a warp each go four to a block.
template <int GROUP> constexpr int ROW_THREADS = GROUP == WARP ? 4 * WARP : GROUP;

template <int GROUP> __device__ __forceinline__ long long row_of_thread() {
  constexpr int ROWS = ROW_THREADS<GROUP> / GROUP;
  return (long long)blockIdx.x * ROWS + threadIdx.x / GROUP;
}

// A whole row in the registers of its group, ITEMS elements a thread: offset + width <= GROUP * ITEMS.
template <class T, int GROUP, int ITEMS> struct RegisterRow {
  static constexpr int SIZE = VECTOR<T>, VECTORS = ITEMS / SIZE;
  float values[VECTORS][SIZE];
  int width, first;  // `first`: position in the row of this thread's first element

  __device__ __forceinline__ RegisterRow(int width, int offset)
      : width(width), first((int)(threadIdx.x % GROUP) * SIZE - offset) {}

  __device__ __forceinline__ int begin(int k) const { return first + k * GROUP * SIZE; }
  __device__ __forceinline__ bool inside(int k, int i) const { return begin(k) + i >= 0 && begin(k) + i < width; }

  __device__ __forceinline__ void load(const T *row, float outside) {
    uint4 vectors[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) vectors[k] = load_packed(row, begin(k), width, outside);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) to_floats<T>(values[k], vectors[k]);
  }

  __device__ __forceinline__ void add(const T *row) {
    RegisterRow other = *this;
    other.load(row, 0.f);
    each([&](int k, int i) { values[k][i] += other.values[k][i]; });
  }

  __device__ __forceinline__ void store(T *row) const {
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) store_vector(row, begin(k), width, values[k]);
  }

  // function(k, i) for each of this thread's elements, those outside the row included
  template <class Function> __device__ __forceinline__ void each(Function function) const {
#pragma unroll
    for (int k = 0; k < VECTORS; ++k)
#pragma unroll
      for (int i = 0; i < SIZE; ++i) function(k, i);
  }
};

// function(begin) for each vector of a row of any width that this thread has.
template <class T, int GROUP, class Function>
__device__ __forceinline__ void each_vector(long long width, int offset, Function function) {
  constexpr int SIZE = VECTOR<T>;
  for (long long begin = (long long)(threadIdx.x % GROUP) * SIZE - offset; begin < width; begin += GROUP * SIZE)
    function(begin);
}

// Largest element and sum of exponentials in one pass: total = sum of exp(x - shift()).
struct OnlineSoftmax {
  float peak = -INFINITY, total = 0.f;

  // What the exponents are shifted by: the peak, unless it is infinite and would give inf - inf.
  __device__ __forceinline__ float shift() const { return fabsf(peak) == INFINITY ? 0.f : peak; }

  __device__ __forceinline__ void raise_peak(float candidate) {
    const float before = peak;
    peak = fmaxf(peak, candidate);
    total *= expf(before - shift());
  }

  template <int SIZE> __device__ __forceinline__ void add(const float (&values)[SIZE]) {
    float highest = values[0];
#pragma unroll
    for (int i = 1; i < SIZE; ++i) highest = fmaxf(highest, values[i]);
    raise_peak(highest);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) total += expf(values[i] - shift());
  }

  // Every thread gets the result over its group.
  template <int GROUP> __device__ __forceinline__ void combine() {
    raise_peak(group_reduce<Max, GROUP>(peak));
    total = group_reduce<Sum, GROUP>(total);
  }
};
