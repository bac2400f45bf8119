// Tiles of a matrix in shared memory, as the tensor-core kernels read them: rows of CHUNKS 16-byte chunks.
#include "mma.cuh"

// Where chunk `chunk` of row `row` lies, in chunks from the tile's start. The exclusive-or spreads over all 32 banks what a
// warp touches at once: the eight rows of an ldmatrix, or the eight neighbouring chunks of a copy. Padding the rows
// instead would do the same, but what we keep at 64 KB fills the largest block of sm_75 to the byte.
template <int CHUNKS> __device__ __forceinline__ int swizzle(int row, int chunk) {
  static_assert(CHUNKS >= 4 && CHUNKS % 4 == 0, "rows of a tile are 64 bytes or a multiple");
  return row * CHUNKS + (CHUNKS % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3));
}

// The chunk's address.
template <class T, int CHUNKS> __device__ __forceinline__ T *chunk_of(T *tile, int row, int chunk) {
  return tile + swizzle<CHUNKS>(row, chunk) * Vector<T>::SIZE;
}

// Begins to copy a tile of ROWS rows from `global` (its first element; `stride` elements between rows). Rows from `rows` on and
// columns from `columns` on become zeros and are not read. With `vectors` every row begins on a 16-byte boundary and
// `columns` is a multiple of the vector, and cp.async does the work (the caller commits and waits); otherwise single
// elements pass through registers: right for any pointer, and slow, as unaligned matrices are rare.
template <class T, int ROWS, int CHUNKS, int THREADS>
__device__ __forceinline__ void load_tile(T *tile, const T *global, long long stride, int rows, int columns, bool vectors) {
  constexpr int SIZE = Vector<T>::SIZE;
  static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as many chunks");
  if (vectors) {
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; ++i) {
      const int index = threadIdx.x + i * THREADS, row = index / CHUNKS, chunk = index % CHUNKS;
      const bool inside = row < rows && chunk * SIZE < columns;
      cp_async(chunk_of<T, CHUNKS>(tile, row, chunk), inside ? global + row * stride + chunk * SIZE : global, inside);
    }
    return;
  }
#pragma unroll 1
  for (int index = threadIdx.x; index < ROWS * CHUNKS; index += THREADS) {
    const int row = index / CHUNKS, chunk = index % CHUNKS;
    Vector<T> vector;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      const int column = chunk * SIZE + i;
      vector.value[i] = row < rows && column < columns ? global[row * stride + column] : from_float<T>(0.f);
    }
    *reinterpret_cast<Vector<T> *>(chunk_of<T, CHUNKS>(tile, row, chunk)) = vector;
  }
}

// ---- fragments of a swizzled tile (layouts: ptx.cuh) ----------------------------------------------------------------

// A of m16n8k16: rows `row`.., 16 columns from chunk `chunk`.
template <class T, int CHUNKS>
__device__ __forceinline__ void load_a(unsigned (&a)[4], const T *tile, int row, int chunk) {
  const int lane = threadIdx.x % WARP;
  ptx_ldmatrix_x4(a, chunk_of<const T, CHUNKS>(tile, row + lane % 16, chunk + lane / 16));
}

// B of two m16n8k16 from a tile whose rows are the columns of B: columns `row`..`row` + 15 of B, 16 deep from chunk `chunk`.
template <class T, int CHUNKS>
__device__ __forceinline__ void load_b(unsigned (&left)[2], unsigned (&right)[2], const T *tile, int row, int chunk) {
  const int lane = threadIdx.x % WARP;
  unsigned r[4];
  ptx_ldmatrix_x4(r, chunk_of<const T, CHUNKS>(tile, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
  left[0] = r[0], left[1] = r[1], right[0] = r[2], right[1] = r[3];
}

// The same from a tile whose rows are the rows of B: rows `row`..`row` + 15 of B, 16 columns from chunk `chunk`.
template <class T, int CHUNKS>
__device__ __forceinline__ void load_b_trans(unsigned (&left)[2], unsigned (&right)[2], const T *tile, int row, int chunk) {
  const int lane = threadIdx.x % WARP;
  unsigned r[4];
  ptx_ldmatrix_x4_trans(r, chunk_of<const T, CHUNKS>(tile, row + lane % 16, chunk + lane / 16));
  left[0] = r[0], left[1] = r[1], right[0] = r[2], right[1] = r[3];
}
