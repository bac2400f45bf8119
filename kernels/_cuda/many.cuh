// Kernels over many arrays at once: a table of their addresses, in chunks of MANY_CHUNK elements, one block per chunk.
#pragma once
#include "common.cuh"

constexpr int MANY_THREADS = 256;
constexpr int MANY_CHUNK = 4096;  // CHUNK in elements.py

// Arrays that belong together, as elements.py writes them: all have `size` elements.
template <int ARRAYS> struct Row {
  unsigned long long at[ARRAYS];
  long long size, first_chunk;

  template <class T> __device__ __forceinline__ T *array(int index) const { return reinterpret_cast<T *>(at[index]); }
};

// The work of a block: elements `begin` to `begin + count` of the arrays of `row`.
template <int ARRAYS> struct Chunk {
  const Row<ARRAYS> *row;
  long long begin;
  int count;

  __device__ __forceinline__ Chunk(const Row<ARRAYS> *rows, int row_count) {
    const long long chunk = blockIdx.x;
    int low = 0, high = row_count;  // the last row that begins at or before the chunk
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (rows[middle].first_chunk <= chunk) low = middle;
      else high = middle;
    }
    row = rows + low;
    begin = (chunk - row->first_chunk) * MANY_CHUNK;
    const long long left = row->size - begin;
    count = left < MANY_CHUNK ? (int)left : MANY_CHUNK;
  }

  template <class T> __device__ __forceinline__ T *array(int index) const {
    return row->template array<T>(index) + begin;
  }
};

// The sum over the block, in thread 0, in one order. In float64 squares of float32 neither overflow nor vanish.
__device__ __forceinline__ double block_sum(double value) {
  SHARED_ARRAY(double, held, MANY_THREADS);
  held[threadIdx.x] = value;
  __syncthreads();
  for (int half = MANY_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) held[threadIdx.x] += held[threadIdx.x + half];
    __syncthreads();
  }
  return held[threadIdx.x];  // the sum in thread 0; other threads read a value that the next sum does not overwrite
}
