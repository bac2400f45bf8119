// output = activation(input weight^T + bias) + residual; input (rows, in_features), weight (out_features, in_features),
// both with rows of whole, aligned 16-byte vectors and any stride between rows. Every block computes one tile of the
// output, in fp32 arithmetic. Blocks are numbered along the output's columns first, so that those running at once share
// few rows of the input and all of the weight (a few MB in this family: it stays in the L2 cache).
#include "column_sums.cuh"
#include "epilogue.cuh"
#include "tile.cuh"

// ---- float16, bfloat16: tensor cores ----------------------------------------------------------------------------

// BM x BN outputs per block. A 64x64 warp tile reads 8 ldmatrix for 32 mma: half of what shared memory can deliver
// while the tensor cores are busy (8 warps of 64x32 would need all of it). STAGES tiles are in flight or in use; they
// fill 64 KB at most, the largest block of sm_75.
template <int BM_, int BN_> struct Tiling {
  static constexpr int BM = BM_, BN = BN_;
  static constexpr int WARPS_M = BM >= 64 ? 2 : 1, WARPS_N = BN >= 64 ? 2 : 1, THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;
  static constexpr int BK = BM >= 128 ? 32 : BM >= 64 ? 64 : 128, CHUNKS = BK / 8;
  static constexpr int STAGES = BM >= 128 ? 4 : BM >= 64 ? 3 : 8;
  static constexpr int STAGE = (BM + BN) * BK;  // elements
  static constexpr int BLOCKS = BM < 128 ? 1 : TARGET_ARCH >= 900 ? 3 : 2;  // per multiprocessor, by shared memory
};

// d += input tile x weight tile^T for this warp, whose fragments begin at these positions; the tiles are BK deep.
template <class T, class S>
__device__ __forceinline__ void multiply_tile(float (&d)[S::WM / 16][S::WN / 8][4], const T *input, const T *weight,
                                              int input_place, int weight_place) {
#pragma unroll
  for (int k = 0; k < S::BK / 16; ++k) {
    unsigned a[S::WM / 16][4], b[S::WN / 8][2];
#pragma unroll
    for (int m = 0; m < S::WM / 16; ++m) load_a(a[m], fragment<S::CHUNKS>(input, input_place, m * 16, k * 2));
#pragma unroll
    for (int n = 0; n < S::WN / 8; n += 2)
      load_b(b[n], b[n + 1], fragment<S::CHUNKS>(weight, weight_place, n * 8, k * 2));
#pragma unroll
    for (int m = 0; m < S::WM / 16; ++m)
#pragma unroll
      for (int n = 0; n < S::WN / 8; ++n) mma<T>(d[m][n], a[m], b[n]);
  }
}

// Moves every row of a register array one to the front. A loop that always works on row 0 and then rotates keeps its
// body, the whole epilogue, in the program once; moving the registers costs almost nothing compared with the product.
template <int ROWS, int GROUPS> __device__ __forceinline__ void rotate(float (&d)[ROWS][GROUPS][4]) {
#pragma unroll
  for (int row = 0; row + 1 < ROWS; ++row)
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
#pragma unroll
      for (int i = 0; i < 4; ++i) d[row][group][i] = d[row + 1][group][i];
}

// Passes the warp's accumulators through its own strip of shared memory, 16 rows at a time, so that bias, residual and
// output are read and written in whole 16-byte vectors.
template <class T, class S>
__device__ __forceinline__ void store_tile(float (&d)[S::WM / 16][S::WN / 8][4], float *strip,
                                           const Epilogue<T> &epilogue, int row0, int column0) {
  constexpr int PITCH = S::WN + 8, VECTORS = S::WN / 8;  // + 8 spreads the rows of a float2 store over the banks
  const int lane = threadIdx.x % WARP;
#pragma unroll 1
  for (int m = 0; m < S::WM / 16; ++m, rotate(d)) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < S::WN / 8; ++n) {
      float *pair = strip + lane / 4 * PITCH + n * 8 + lane % 4 * 2;
      *reinterpret_cast<float2 *>(pair) = make_float2(d[0][n][0], d[0][n][1]);
      *reinterpret_cast<float2 *>(pair + 8 * PITCH) = make_float2(d[0][n][2], d[0][n][3]);
    }
    __syncwarp();
#pragma unroll 1
    for (int index = lane; index < 16 * VECTORS; index += WARP) {
      const int row = index / VECTORS, column = index % VECTORS * 8;
      const float4 *vector = reinterpret_cast<const float4 *>(strip + row * PITCH + column);
      const float4 left = vector[0], right = vector[1];
      float values[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
      epilogue.store(values, row0 + m * 16 + row, column0 + column);
    }
  }
}

template <class T, int BM, int BN>
__global__ void __launch_bounds__(Tiling<BM, BN>::THREADS, Tiling<BM, BN>::BLOCKS)
linear_mma(T *output, const T *input, const T *weight, const T *bias, const T *residual, long long output_stride,
           long long input_stride, long long weight_stride, long long residual_stride, int rows, int out_features,
           int in_features, int activation) {
  using S = Tiling<BM, BN>;
  DYNAMIC_SHARED(shared);
  T *stages = reinterpret_cast<T *>(shared);
  const int columns = (out_features + BN - 1) / BN;
  const int row0 = blockIdx.x / columns * BM, column0 = blockIdx.x % columns * BN;
  const int warp = threadIdx.x / WARP, warp_row = warp % S::WARPS_M * S::WM, warp_column = warp / S::WARPS_M * S::WN;
  input += row0 * input_stride;
  weight += column0 * weight_stride;
  const int steps = (in_features + S::BK - 1) / S::BK;

  auto fetch = [&](int step) {
    if (step < steps) {
      T *stage = stages + step % S::STAGES * S::STAGE;
      const int k = step * S::BK;
      load_tile<BM, S::CHUNKS, S::CHUNKS, S::THREADS>(stage, input + k, input_stride, rows - row0, in_features - k);
      load_tile<BN, S::CHUNKS, S::CHUNKS, S::THREADS>(stage + BM * S::BK, weight + k, weight_stride,
                                                      out_features - column0, in_features - k);
    }
    cp_async_commit();  // also without further tiles, so that "all but the last STAGES - 2 groups" stays right
  };

  const int input_place = a_place<S::CHUNKS>(warp_row), weight_place = b_place<S::CHUNKS>(warp_column);
  float d[S::WM / 16][S::WN / 8][4] = {};
#pragma unroll
  for (int step = 0; step < S::STAGES - 1; ++step) fetch(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::STAGES - 2>();
    __syncthreads();  // this stage has arrived, and all threads are done with the one that is fetched into next
    fetch(step + S::STAGES - 1);
    const T *stage = stages + step % S::STAGES * S::STAGE;
    multiply_tile<T, S>(d, stage, stage + BM * S::BK, input_place, weight_place);
  }
  __syncthreads();  // the stages become the epilogue's strips

  const Epilogue<T> epilogue = {output, bias, residual, output_stride, residual_stride, rows, out_features,
                                activation};
  float *strip = reinterpret_cast<float *>(shared) + warp * 16 * (S::WN + 8);
  store_tile<T, S>(d, strip, epilogue, row0 + warp_row, column0 + warp_column);
}

// ---- float32: ordinary FMA, exact (no tf32) ---------------------------------------------------------------------

// Each thread holds 8x8 outputs as [row][half][4 columns]: rows 4y..4y+3 and as many B/2 further on, columns likewise,
// so that the float4 reads of a warp from shared memory have no bank conflicts.
constexpr int DEPTH = 8;

// The thread's share of a B x DEPTH tile, global to registers: vectors along k, zeros outside.
template <int B, int THREADS>
__device__ __forceinline__ void fetch_fp32(uint4 (&held)[B * DEPTH / THREADS / 4], const float *global,
                                           long long stride, int rows, int depth) {
#pragma unroll
  for (int i = 0; i < B * DEPTH / THREADS / 4; ++i) {
    const int index = threadIdx.x + i * THREADS, row = index / (DEPTH / 4), k = index % (DEPTH / 4) * 4;
    const bool inside = row < rows && k < depth;
    held[i] = inside ? *reinterpret_cast<const uint4 *>(global + row * stride + k) : make_uint4(0, 0, 0, 0);
  }
}

// Registers to shared memory, transposed to (DEPTH, B + 4).
template <int B, int THREADS>
__device__ __forceinline__ void place_fp32(float *tile, const uint4 (&held)[B * DEPTH / THREADS / 4]) {
#pragma unroll
  for (int i = 0; i < B * DEPTH / THREADS / 4; ++i) {
    const int index = threadIdx.x + i * THREADS, row = index / (DEPTH / 4), k = index % (DEPTH / 4) * 4;
    float values[4];
    to_floats<float>(values, held[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[(k + j) * (B + 4) + row] = values[j];
  }
}

template <int B>
__device__ __forceinline__ void multiply_fp32(float (&d)[8][2][4], const float *input, const float *weight, int y,
                                              int x) {
#pragma unroll 2  // all 8 at once need more than the 128 registers that let two blocks share a multiprocessor
  for (int k = 0; k < DEPTH; ++k) {
    float4 a[2], b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = k * (B + 4) + half * (B / 2);
      a[half] = *reinterpret_cast<const float4 *>(input + column + y * 4);
      b[half] = *reinterpret_cast<const float4 *>(weight + column + x * 4);
    }
    const float left[8] = {a[0].x, a[0].y, a[0].z, a[0].w, a[1].x, a[1].y, a[1].z, a[1].w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        d[i][half][0] = fmaf(left[i], b[half].x, d[i][half][0]);
        d[i][half][1] = fmaf(left[i], b[half].y, d[i][half][1]);
        d[i][half][2] = fmaf(left[i], b[half].z, d[i][half][2]);
        d[i][half][3] = fmaf(left[i], b[half].w, d[i][half][3]);
      }
  }
}

// B x B outputs by (B / 8)^2 threads; the next tile waits in registers while this one is multiplied.
template <int B>
__global__ void __launch_bounds__(B *B / 64, 2)
linear_fp32(float *output, const float *input, const float *weight, const float *bias, const float *residual,
            long long output_stride, long long input_stride, long long weight_stride, long long residual_stride,
            int rows, int out_features, int in_features, int activation) {
  constexpr int THREADS = B * B / 64, TILE = DEPTH * (B + 4), SHARE = B * DEPTH / THREADS / 4;
  SHARED_ARRAY(float4, shared, TILE);  // 4 TILE floats: [buffer][input, weight]
  float *tiles = reinterpret_cast<float *>(shared);
  const int columns = (out_features + B - 1) / B, row0 = blockIdx.x / columns * B, column0 = blockIdx.x % columns * B;
  const int y = threadIdx.x / (B / 8), x = threadIdx.x % (B / 8);
  const int steps = (in_features + DEPTH - 1) / DEPTH;
  input += row0 * input_stride;
  weight += column0 * weight_stride;

  uint4 held_input[SHARE], held_weight[SHARE];
  float d[8][2][4] = {};
  auto fetch = [&](int step) {
    const int k = step * DEPTH;
    fetch_fp32<B, THREADS>(held_input, input + k, input_stride, rows - row0, in_features - k);
    fetch_fp32<B, THREADS>(held_weight, weight + k, weight_stride, out_features - column0, in_features - k);
  };
  fetch(0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float *tile = tiles + step % 2 * 2 * TILE;
    place_fp32<B, THREADS>(tile, held_input);
    place_fp32<B, THREADS>(tile + TILE, held_weight);
    __syncthreads();  // one barrier a step suffices: the other buffer is written only after all threads have passed it
    if (step + 1 < steps) fetch(step + 1);
    multiply_fp32<B>(d, tile, tile + TILE, y, x);
  }

  const Epilogue<float> epilogue = {output, bias, residual, output_stride, residual_stride, rows, out_features,
                                activation};
#pragma unroll 1
  for (int i = 0; i < 8; ++i, rotate(d)) {
    const int row = row0 + i / 4 * (B / 2) + y * 4 + i % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) epilogue.store(d[0][half], row, column0 + half * (B / 2) + x * 4);
  }
}
