// Rows of a table by id. An id outside the table gives a row of NaN: checking the ids beforehand would
// wait for the GPU, and the row of another id would go unnoticed.
#include "common.cuh"

constexpr int BATCH = 4;  // loads of a thread in flight

template <class Unit> __device__ __forceinline__ Unit all_ones() { return (Unit)~Unit(0); }
template <> __device__ __forceinline__ uint4 all_ones<uint4>() { return make_uint4(~0u, ~0u, ~0u, ~0u); }

// The table is copied in units of sizeof(Unit) bytes, `units` to a row; a unit of ones is NaN in every floating dtype.
// Each row of threads of the block, blockDim.x wide, copies one row of the output.
template <class Unit, class Id>
__global__ void __launch_bounds__(256)
    embedding_rows(const Id *__restrict__ ids, const Unit *__restrict__ table, Unit *__restrict__ output,
                   long long rows, int units, long long table_rows) {
  const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const long long id = ids[row];
  const bool known = id >= 0 && id < table_rows;
  for (int first = threadIdx.x; first < units; first += BATCH * blockDim.x) {
    Unit held[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const int i = first + k * blockDim.x;
      held[k] = known && i < units ? table[id * units + i] : all_ones<Unit>();
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const int i = first + k * blockDim.x;
      if (i < units) output[row * units + i] = held[k];
    }
  }
}

// ---- gradient of the table ----------------------------------------------------------------------------------------
//
// The ids are sorted; a run is the positions of equal ids. Chunks of SUM_CHUNK sorted ids divide long runs (the first
// position, a type that every token has): sum_continued sums the part of a run in a chunk in which it does not begin,
// sum_runs the rest and the run's total.

constexpr int SUM_CHUNK = 64;  // CHUNK in cuda.py

// The sum of a column over the sorted positions first, first + 1, .. of one id, up to the end of `first`'s chunk.
template <class T>
__device__ __forceinline__ float sum_in_chunk(const T *grad_output, const long long *order,
                                              const long long *sorted_ids, long long first, long long count, int column,
                                              int dim) {
  const long long next = (first / SUM_CHUNK + 1) * SUM_CHUNK, end = next < count ? next : count;
  float total = 0.f;
  for (long long place = first; place < end && sorted_ids[place] == sorted_ids[first]; ++place)
    total += to_float(grad_output[order[place] * dim + column]);
  return total;
}

// partials[chunk]: the sum of the run that continues from the previous chunk, or nothing.
template <class T>
__global__ void __launch_bounds__(128)
    sum_continued(const T *__restrict__ grad_output, const long long *__restrict__ order,
                  const long long *__restrict__ sorted_ids, float *__restrict__ partials, long long count, int dim) {
  const long long first = (long long)blockIdx.x * SUM_CHUNK;
  if (first == 0 || sorted_ids[first] != sorted_ids[first - 1]) return;
  for (int column = threadIdx.x; column < dim; column += blockDim.x)
    partials[blockIdx.x * (long long)dim + column] =
        sum_in_chunk(grad_output, order, sorted_ids, first, count, column, dim);
}

// A block for each sorted position; blocks at which no run begins do nothing.
template <class T>
__global__ void __launch_bounds__(128)
    sum_runs(const T *__restrict__ grad_output, const long long *__restrict__ order,
             const long long *__restrict__ sorted_ids, const float *__restrict__ partials, T *__restrict__ output,
             long long count, int dim, long long table_rows) {
  const long long first = blockIdx.x, id = sorted_ids[first];
  if (id < 0 || id >= table_rows || (first > 0 && sorted_ids[first - 1] == id)) return;
  for (int column = threadIdx.x; column < dim; column += blockDim.x) {
    float total = sum_in_chunk(grad_output, order, sorted_ids, first, count, column, dim);
    for (long long chunk = first / SUM_CHUNK + 1; chunk * SUM_CHUNK < count; ++chunk) {
      if (sorted_ids[chunk * SUM_CHUNK] != id) break;
      total += partials[chunk * dim + column];
    }
    output[id * dim + column] = from_float<T>(to_float(output[id * dim + column]) + total);
  }
}
