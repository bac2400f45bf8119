// Tiles of a matrix in shared memory for the tensor-core kernels: rows of 16-byte chunks.
#include "mma.cuh"

// The index of chunk `chunk` of row `row` in a tile whose rows are PITCH chunks apart. The accesses of a warp at once,
// eight rows of an ldmatrix or eight neighbouring chunks of a copy, must spread over all 32 banks. An odd pitch does so
// by itself (one chunk of padding per row) and makes all addresses one register plus constants; an even one takes no
// more memory than the data, and permutes the chunks of each row by an exclusive-or, equal in every eighth row.
template <int PITCH> __device__ __forceinline__ int chunk_at(int row, int chunk) {
  static_assert(PITCH % 2 == 1 || PITCH == 4 || PITCH % 8 == 0, "no permutation for this pitch");
  if (PITCH % 8 == 0) chunk ^= row & 7;
  if (PITCH == 4) chunk ^= row / 2 & 3;
  return row * PITCH + chunk;
}

template <int PITCH, class T> __device__ __forceinline__ T *chunk_of(T *tile, int row, int chunk) {
  return tile + chunk_at<PITCH>(row, chunk) * VECTOR<T>;
}

// Begins to copy a tile of ROWS rows of CHUNKS chunks from `global` (its first element; `stride` elements between
// rows). Rows from `rows` on and columns from `columns` on become zeros and are not read. Every row begins on a
// 16-byte boundary and `columns` is a whole number of chunks: launchers copy the rare array with other rows
// (_cuda.vector_rows), which costs less than a second way through every kernel. The caller commits and waits.
template <int ROWS, int CHUNKS, int PITCH, int THREADS, class T>
__device__ __forceinline__ void load_tile(T *tile, const T *global, long long stride, int rows, int columns) {
  constexpr int STEP = THREADS / CHUNKS;  // rows copied at once
  static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0, "every thread copies as many chunks, all in one column");
  const int row0 = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const bool inside = chunk * VECTOR<T> < columns;
  global += row0 * stride + chunk * VECTOR<T>;
  T *first = chunk_of<PITCH>(tile, row0, chunk);
#pragma unroll(TARGET_ARCH >= 800 ? ROWS / STEP : 4)  // without cp.async, loads in flight take registers
  for (int i = 0; i < ROWS / STEP; ++i, global += STEP * stride) {
    T *shared = STEP % 8 == 0 ? first + i * STEP * PITCH * VECTOR<T> : chunk_of<PITCH>(tile, row0 + i * STEP, chunk);
    cp_async(shared, global, inside && row0 + i * STEP < rows);
  }
}

// ---- fragments of a tile (layouts: ptx.cuh) ----------------------------------------------------------------

// Where this lane begins to read fragments of a tile, in chunks: of A (m16n8k16), rows `row`.. and columns from chunk 0;
// of two B from a tile whose rows are the columns of B, its columns `row`..`row` + 15.
template <int PITCH> __device__ __forceinline__ int a_place(int row) {
  const int lane = threadIdx.x % WARP;
  return chunk_at<PITCH>(row + lane % 16, lane / 16);
}
template <int PITCH> __device__ __forceinline__ int b_place(int row) {
  const int lane = threadIdx.x % WARP;
  return chunk_at<PITCH>(row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// The same fragment `rows` rows further down, a multiple of 8, and `chunks` chunks further right, an even number. With an
// even pitch chunks add up without a carry: one register serves all fragments of a tile, for an instruction each.
template <int PITCH, class T>
__device__ __forceinline__ const T *fragment(const T *tile, int place, int rows, int chunks) {
  static_assert(PITCH % 2 == 0, "an odd pitch has carries, and needs none of this");
  return tile + (place ^ chunks) * VECTOR<T> + rows * PITCH * VECTOR<T>;
}

__device__ __forceinline__ void load_a(unsigned (&a)[4], const void *fragment) { ptx_ldmatrix_x4(a, fragment); }

__device__ __forceinline__ void load_b(unsigned (&left)[2], unsigned (&right)[2], const void *fragment) {
  unsigned r[4];
  ptx_ldmatrix_x4(r, fragment);
  left[0] = r[0], left[1] = r[1], right[0] = r[2], right[1] = r[3];
}

// A of m16n8k16: rows `row`.., 16 columns from chunk `chunk`.
template <int PITCH, class T>
__device__ __forceinline__ void load_a(unsigned (&a)[4], const T *tile, int row, int chunk) {
  const int lane = threadIdx.x % WARP;
  load_a(a, chunk_of<PITCH>(tile, row + lane % 16, chunk + lane / 16));
}

// B of two m16n8k16 from a tile whose rows are the columns of B: its columns `row`..`row` + 15, 16 deep from `chunk`.
template <int PITCH, class T>
__device__ __forceinline__ void load_b(unsigned (&left)[2], unsigned (&right)[2], const T *tile, int row, int chunk) {
  const int lane = threadIdx.x % WARP;
  load_b(left, right, chunk_of<PITCH>(tile, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

// The same from a tile whose rows are the rows of B: its rows `row`..`row` + 15, 16 columns from `chunk`.
template <int PITCH, class T>
__device__ __forceinline__ void load_b_trans(unsigned (&left)[2], unsigned (&right)[2], const T *tile, int row,
                                             int chunk) {
  const int lane = threadIdx.x % WARP;
  unsigned r[4];
  ptx_ldmatrix_x4_trans(r, chunk_of<PITCH>(tile, row + lane % 16, chunk + lane / 16));
  left[0] = r[0], left[1] = r[1], right[0] = r[2], right[1] = r[3];
}
