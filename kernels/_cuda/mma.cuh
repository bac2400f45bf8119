// Products of small matrix fragments by a warp, and the copies that feed them, from sm_75 on (fragment layouts: ptx.cuh).
//
//   T = __half         sm_80 and later: mma.sync m16n8k16; sm_75: two m16n8k8
//   T = __nv_bfloat16  sm_80 and later: mma.sync m16n8k16; sm_75 has none: fp32 arithmetic over warp shuffles, slow but right
//   cp_async           sm_80 and later: cp.async; sm_75: an ordinary 16-byte copy
#include "common.cuh"
#include "ptx.cuh"

#ifdef __CUDA_ARCH__
#define TARGET_ARCH __CUDA_ARCH__
#endif  // the emulator defines TARGET_ARCH itself, to run either branch

// Two values rounded to T in one register, `low` in the lower half.
template <class T> __device__ __forceinline__ unsigned pack(float low, float high);
template <> __device__ __forceinline__ unsigned pack<__half>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned *>(&both);
}
template <> __device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned *>(&both);
}

// d (16 x 8, fp32) += a (16 x 16, T) b (16 x 8, T). All 32 lanes take part.
template <class T> __device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if TARGET_ARCH >= 800
  ptx_mma_m16n8k16_f16(d, a, b);
#else
  ptx_mma_m16n8k8_f16(d, a[0], a[1], b[0]);
  ptx_mma_m16n8k8_f16(d, a[2], a[3], b[1]);
#endif
}

#if TARGET_ARCH < 800
__device__ __forceinline__ float bf16_low(unsigned both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float bf16_high(unsigned both) { return __uint_as_float(both & 0xffff0000u); }

// The four lanes of a group hold rows group and group + 8 of A; the lanes of groups n and n + 1 hold columns n and n + 1 of B.
__device__ __forceinline__ void mma_bf16_by_shuffles(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const int lane = threadIdx.x % WARP, group = lane / 4, column = 2 * (lane % 4);
#pragma unroll 1  // a real loop: unrolled, the shuffles of many mma's are started at once and their results spill
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned upper = __shfl_sync(FULL_MASK, a[2 * half], group * 4 + k);
      const unsigned lower = __shfl_sync(FULL_MASK, a[2 * half + 1], group * 4 + k);
      const unsigned left = __shfl_sync(FULL_MASK, b[half], column * 4 + k);
      const unsigned right = __shfl_sync(FULL_MASK, b[half], column * 4 + 4 + k);
      d[0] += bf16_low(upper) * bf16_low(left) + bf16_high(upper) * bf16_high(left);
      d[1] += bf16_low(upper) * bf16_low(right) + bf16_high(upper) * bf16_high(right);
      d[2] += bf16_low(lower) * bf16_low(left) + bf16_high(lower) * bf16_high(left);
      d[3] += bf16_low(lower) * bf16_low(right) + bf16_high(lower) * bf16_high(right);
    }
  }
}
#endif

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if TARGET_ARCH >= 800
  ptx_mma_m16n8k16_bf16(d, a, b);
#else
  mma_bf16_by_shuffles(d, a, b);
#endif
}

// Copies 16 bytes from global to shared memory (both 16-byte aligned), in the background where the GPU can; zeros if not
// `inside`, and `global` is then not read. The data is there for this thread after cp_async_wait, for others after a barrier too.
__device__ __forceinline__ void cp_async(void *shared, const void *global, bool inside = true) {
#if TARGET_ARCH >= 800
  ptx_cp_async_16(shared, global, inside ? 16 : 0);
#else
  *reinterpret_cast<uint4 *>(shared) =
      inside ? *reinterpret_cast<const uint4 *>(global) : make_uint4(0, 0, 0, 0);
#endif
}

// Closes the group of the copies started since the last one.
__device__ __forceinline__ void cp_async_commit() {
#if TARGET_ARCH >= 800
  ptx_cp_async_commit();
#endif
}

// Waits until at most PENDING of this thread's latest groups are under way.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
#if TARGET_ARCH >= 800
  ptx_cp_async_wait<PENDING>();
#endif
}
