// The tiles of the backward for float32: a thread has the scores of every 8th row and 16th column, as in fp32.cuh.
#include "backward.cuh"
#include "fp32.cuh"

template <int D> struct ByFma {
  using S = Fp32Tiling<D, (D <= 64 ? 32 : D <= 128 ? 16 : 8), (D <= 64 ? 64 : D <= 128 ? 32 : 16)>;
  static constexpr int STAGES = 1, ROW = D, HEIGHT = S::ROWS;  // all tiles and the weights fit in 64 KB
  static constexpr int GROUPS = S::R, WIDTH = S::C, COUNT = GROUPS * WIDTH;
  using Scores = Fp32Scores<S>;
  using Sums = Fp32Output<S>;
  static constexpr int STRIP_PITCH = S::PROBS_PITCH;
  float *room;  // for the weights, which threads exchange through it

  static __device__ __forceinline__ int first_row() { return 0; }
  static __device__ __forceinline__ int row(int group, int) { return threadIdx.x / 16 + 8 * group; }
  static __device__ __forceinline__ int column(int, int i) { return threadIdx.x % 16 + 16 * (i % WIDTH); }

  __device__ __forceinline__ void begin(const float *, const float *) {}

  template <int WHICH>
  __device__ __forceinline__ void multiply(Scores &scores, const float *own, const float *others) const {
    multiply_keys_fp32<S>(scores, own, others, threadIdx.x / 16, threadIdx.x % 16);
  }

  __device__ __forceinline__ void accumulate(Sums &sums, const Scores &weights, const float *others) const {
    __syncwarp();  // the warp, the only one that uses its rows, has read the previous weights
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      room[row(i / WIDTH, i) * S::PROBS_PITCH + column(i / WIDTH, i)] = weights[i / WIDTH][i % WIDTH];
    __syncwarp();
    multiply_values_fp32<S>(sums, room, others, threadIdx.x / 16, threadIdx.x % 16);
  }

  // As on tensor cores; all of the block are one strip, whose weights accumulate() has put into the room.
  static __device__ __forceinline__ bool owns_strip() { return true; }
  static __device__ __forceinline__ int member() { return threadIdx.x; }
  __device__ __forceinline__ const float *lay(const Scores &) const {
    __syncthreads();
    return room;
  }

  static __device__ __forceinline__ void store(float *global, long long stride, float *, const Sums &sums, float factor,
                                               int rows, int head_dim) {
#pragma unroll
    for (int i = 0; i < S::R; ++i)
#pragma unroll
      for (int c = 0; c < S::GROUPS * S::WIDTH; ++c) {
        const int at = row(i, 0), column = c / S::WIDTH * 64 + threadIdx.x % 16 * S::WIDTH + c % S::WIDTH;
        if (at < rows && column < head_dim) global[at * stride + column] = sums[i][c / S::WIDTH][c % S::WIDTH] * factor;
      }
  }
};
