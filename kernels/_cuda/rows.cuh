// Kernels over rows: GROUP threads (a warp, or a block) share one row of `width` elements.
//
// Each kernel exists twice. <T, GROUP, ITEMS> is for aligned rows: they and all accompanying arrays begin and end on
// 16-byte boundaries. Such a row stays in the registers of its group, ITEMS elements per thread; thread t has the
// vectors t, t + GROUP, ..., and nothing is read or written element by element. <T, GROUP> accepts any rows and reads
// them more than once.
#pragma once
#include "common.cuh"

// Threads of a block: four rows if each has one warp.
template <int GROUP> constexpr int ROW_THREADS = GROUP == WARP ? 4 * WARP : GROUP;

template <int GROUP> __device__ __forceinline__ long long row_of_thread() {
  constexpr int ROWS = ROW_THREADS<GROUP> / GROUP;
  return (long long)blockIdx.x * ROWS + threadIdx.x / GROUP;
}

// ---- aligned rows -----------------------------------------------------------------------------------------------

// Blocks of a multiprocessor, so that a thread has 128 registers, or 168. As in rows.py.
template <int ITEMS> constexpr int ROW_BLOCKS = ITEMS > 24 ? 3 : 4;

// function(index, again) for each row of this thread's group: a block computes one row after the other and keeps its
// registers. If it returns false for a row, it is called for it once more, with `again`.
template <int GROUP, class Function> __device__ __forceinline__ void each_row(long long rows, Function function) {
  constexpr int ROWS = ROW_THREADS<GROUP> / GROUP;
  bool again = false;
  for (long long index = row_of_thread<GROUP>(); index < rows;) {
    again = !function(index, again);
    if (!again) index += (long long)gridDim.x * ROWS;
  }
}

// This thread's part of an aligned row. ITEMS is the least that holds the row, but for steps of 8: all vectors but the
// last 8 elements are inside.
template <class T, int GROUP, int ITEMS> struct RowShape {
  static constexpr int SIZE = VECTOR<T>, VECTORS = ITEMS / SIZE;

  static __device__ __forceinline__ int begin(int k) { return ((int)(threadIdx.x % GROUP) + k * GROUP) * SIZE; }
  static __device__ __forceinline__ bool inside(int k, int width) { return k * SIZE < ITEMS - 8 || begin(k) < width; }

  // function(k, i) for each element, those beyond the row included
  template <class Function> static __device__ __forceinline__ void each(Function function) {
#pragma unroll
    for (int k = 0; k < VECTORS; ++k)
#pragma unroll
      for (int i = 0; i < SIZE; ++i) function(k, i);
  }
};

// A row as in memory, `outside` beyond its end, or everywhere if the array is null. It stays packed while other loads
// are in flight: converted at once, each would wait for the previous one.
template <class T, int GROUP, int ITEMS> struct PackedRow : RowShape<T, GROUP, ITEMS> {
  using Shape = RowShape<T, GROUP, ITEMS>;
  uint4 vectors[Shape::VECTORS];

  __device__ __forceinline__ PackedRow(const T *row, int width, float outside, bool is_there = true) {
    float values[Shape::SIZE];
#pragma unroll
    for (int i = 0; i < Shape::SIZE; ++i) values[i] = outside;
#pragma unroll
    for (int k = 0; k < Shape::VECTORS; ++k)
      vectors[k] = is_there && Shape::inside(k, width) ? *reinterpret_cast<const uint4 *>(row + Shape::begin(k))
                                                       : pack_floats<T>(values);
  }
};

// A row as floats.
template <class T, int GROUP, int ITEMS> struct RegisterRow : RowShape<T, GROUP, ITEMS> {
  using Shape = RowShape<T, GROUP, ITEMS>;
  float values[Shape::VECTORS][Shape::SIZE];

  __device__ __forceinline__ explicit RegisterRow(const PackedRow<T, GROUP, ITEMS> &packed) {
#pragma unroll
    for (int k = 0; k < Shape::VECTORS; ++k) to_floats<T>(values[k], packed.vectors[k]);
  }

  __device__ __forceinline__ void add(const PackedRow<T, GROUP, ITEMS> &packed) {
    const RegisterRow other(packed);
    Shape::each([&](int k, int i) { values[k][i] += other.values[k][i]; });
  }

  __device__ __forceinline__ void store(T *row, int width) const {
#pragma unroll
    for (int k = 0; k < Shape::VECTORS; ++k)
      if (Shape::inside(k, width)) *reinterpret_cast<uint4 *>(row + Shape::begin(k)) = pack_floats<T>(values[k]);
  }
};

// ---- any rows ---------------------------------------------------------------------------------------------------

// function(begin) for each vector of a row of any width that this thread has. A row is divided at the 16-byte
// boundaries of memory, so that all but its ends is read in whole vectors: `offset` is how many elements its start lies
// beyond a boundary, and the first vector begins `offset` elements before the row. With VECTORS = 2 it is for every
// second one of the thread: the other begins GROUP vectors further on.
template <class T, int GROUP, int VECTORS = 1, class Function>
__device__ __forceinline__ void each_vector(int width, int offset, Function function) {
  const int vectors = (int)(((long long)width + offset + VECTOR<T> - 1) / VECTOR<T>);
  for (int vector = threadIdx.x % GROUP; vector < vectors; vector += VECTORS * GROUP)
    function(vector * VECTOR<T> - offset);
}

// ---- exponentials -----------------------------------------------------------------------------------------------

// exp(x - shift) as exp2 of one fused multiply-add, up to a factor near 1, the same for all x of a row, from the
// rounding of `base`. It cancels in a softmax; elsewhere divide by the value at the shift.
struct Exponent {
  float peak, shift, slope, base;

  // The shift is the peak, unless it is infinite and would give inf - inf. Beyond 2^30 numbers are 64 apart, so that
  // the slope does not matter, but the base's rounding would, and the base could overflow.
  __device__ __forceinline__ explicit Exponent(float peak)
      : peak(peak), shift(fabsf(peak) == INFINITY ? 0.f : peak),
        slope(fabsf(shift) > 1073741824.f ? 1.f : 1.4426950408889634f), base(shift * slope) {}

  __device__ __forceinline__ float operator()(float x) const { return exp2f(fmaf(x, slope, -base)); }

  // The factor of exp(x - shift), whose sum is `total`: 0 for a row of -inf and, by the definition, NaN for a row with
  // inf.
  __device__ __forceinline__ float inverse(float total) const {
    return peak == INFINITY ? NAN : total == 0.f ? 0.f : __fdividef(1.f, total);
  }
};

// Largest element and sum of exponentials in one pass: total = sum of exponent(x), which is shifted by the peak.
struct OnlineSoftmax {
  Exponent exponent = Exponent(-INFINITY);
  float total = 0.f;

  __device__ __forceinline__ void raise_peak(float candidate) {
    const float before = exponent.base;
    exponent = Exponent(fmaxf(exponent.peak, candidate));
    total *= exp2f(fminf(before - exponent.base, 0.f));  // above 0 only after -inf alone, whose total is 0
  }

  template <int SIZE> __device__ __forceinline__ void add(const float (&first)[SIZE], const float (&second)[SIZE]) {
    float highest = fmaxf(first[0], second[0]);
#pragma unroll
    for (int i = 1; i < SIZE; ++i) highest = fmaxf(highest, fmaxf(first[i], second[i]));
    raise_peak(highest);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) total += exponent(first[i]) + exponent(second[i]);
  }
};

// Of a row of any width; every thread gets the result over its group. Two vectors are in flight at a time.
template <class T, int GROUP> __device__ __forceinline__ OnlineSoftmax softmax_of_row(const T *row, int width) {
  constexpr int SIZE = VECTOR<T>;
  OnlineSoftmax statistics;
  each_vector<T, GROUP, 2>(width, misalignment(row), [&](int begin) {
    const uint4 packed = load_packed(row, begin, width, -INFINITY);
    const uint4 beyond = load_packed(row, begin + GROUP * SIZE, width, -INFINITY);
    float first[SIZE], second[SIZE];
    to_floats<T>(first, packed);
    to_floats<T>(second, beyond);
    statistics.add(first, second);
  });
  statistics.raise_peak(group_reduce<Max, GROUP>(statistics.exponent.peak));
  statistics.total = group_reduce<Sum, GROUP>(statistics.total);
  return statistics;
}
