// The tiles of the backward on tensor cores: a warp owns 16 rows, whose scores and sums stay in its registers. Beyond
// 128 columns two warps share the rows: each computes the scores, and half of the sums' columns.
#include "backward.cuh"
#include "tensor_cores.cuh"

template <class T, int D> struct OnTensorCores {
  static constexpr int SHARERS = D <= 128 ? 1 : 2;
  struct S : Tiling<D, 1, 4, (D <= 64 ? 32 : 16)> {
    static constexpr int ROWS = 64 / SHARERS;
  };
  static constexpr int STAGES = D <= 128 ? 2 : 1;  // of the others' tiles; all fit in 64 KB, the limit of sm_75
  static constexpr int ROW = S::PITCH * 8, HEIGHT = S::WARP_ROWS, COLUMNS = D / 8 / SHARERS;
  static constexpr int GROUPS = S::KEYS / 8, WIDTH = 4, COUNT = GROUPS * WIDTH;
  using Scores = ::Scores<S>;
  using Sums = float[1][COLUMNS][4];
  static constexpr int STRIP_PITCH = S::KEYS + 8;  // no bank conflicts, neither for fragments nor for a row
  float *room;         // of the strips, for threads that add along their diagonals
  Queries<S> held[2];  // fragments of the block's own tiles

  static __device__ __forceinline__ int first_row() { return threadIdx.x / WARP / SHARERS * S::WARP_ROWS; }
  static __device__ __forceinline__ int first_chunk() { return threadIdx.x / WARP % SHARERS * COLUMNS; }
  // The position of score i of a group of fragments within the tiles.
  static __device__ __forceinline__ int row(int, int i) { return first_row() + threadIdx.x % WARP / 4 + i / 2 % 2 * 8; }
  static __device__ __forceinline__ int column(int group, int i) { return group * 8 + threadIdx.x % 4 * 2 + i % 2; }

  __device__ __forceinline__ void begin(const T *first, const T *second) {
    if constexpr (S::HELD == D / 16)
#pragma unroll
      for (int step = 0; step < S::HELD; ++step) {
        load_queries<T, S>(held[0][step], first, first_row(), step);
        load_queries<T, S>(held[1][step], second, first_row(), step);
      }
  }

  template <int WHICH>
  __device__ __forceinline__ void multiply(Scores &scores, const T *own, const T *others) {
    multiply_keys<T, S>(scores, held[WHICH], own, others, first_row());
  }

  __device__ __forceinline__ void accumulate(Sums &sums, const Scores &weights, const T *others) const {
    multiply_values<T, S>(sums, weights, others, first_chunk());
  }

  // Whether the warp adds for its strip; the thread's number among those that add.
  static __device__ __forceinline__ bool owns_strip() { return first_chunk() == 0; }
  static __device__ __forceinline__ int member() { return threadIdx.x % WARP; }

  // Rows of the strip's scores, for all threads that add. Call it after accumulate().
  __device__ __forceinline__ const float *lay(const Scores &scores) const {
    float *strip = room + first_row() * STRIP_PITCH;
    __syncwarp();  // the warp has read the previous scores
#pragma unroll
    for (int i = 0; i < COUNT; i += 2)
      *reinterpret_cast<float2 *>(strip + (row(0, i) - first_row()) * STRIP_PITCH + column(i / WIDTH, i)) =
          make_float2(scores[i / WIDTH][i % WIDTH], scores[i / WIDTH][i % WIDTH + 1]);
    __syncwarp();
    return strip;
  }

  // Writes the first `rows` of the sums, times `factor`, through the tile of the block.
  static __device__ __forceinline__ void store(T *global, long long stride, T *tile, const Sums &sums, float factor,
                                               int rows, int head_dim) {
#pragma unroll
    for (int half = 0; half < 2; ++half) put_row<T, S>(tile, sums[0], half, factor, row(0, 2 * half), first_chunk());
    if (SHARERS == 1) __syncwarp();
    else __syncthreads();
    if (SHARERS > 1 && first_chunk()) return;  // the warp beside it stores all columns of their rows
    store_rows<T, S>(global + first_row() * stride, stride, tile, first_row(), rows - first_row(), head_dim);
  }
};
