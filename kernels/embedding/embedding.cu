// Rows of a table by id. An id outside the table gives a row of NaN: on a GPU nobody can look at the ids beforehand
// without waiting for them, and the row of another id would go unnoticed.
#include "common.cuh"

constexpr int BATCH = 4;  // loads a thread has under way

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
