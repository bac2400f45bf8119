// Products of small matrix fragments by a warp, and the copies that feed them, from sm_75 on (fragment layouts:
// ptx.cuh).
//
//   T = __half         sm_80 and later: mma.sync m16n8k16; sm_75: two m16n8k8
//   T = __nv_bfloat16  sm_80 and later: mma.sync m16n8k16; sm_75 has none: fp32 over shuffles, slow but right
//   cp_async           sm_80 and later: cp.async; sm_75: an ordinary 16-byte copy
#include "common.cuh"
#include "ptx.cuh"

#ifdef __CUDA_ARCH__
#define TARGET_ARCH __CUDA_ARCH__
#endif  // the emulator defines TARGET_ARCH itself, to run either branch

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
// The four lanes of a group hold rows group and group + 8 of A; those of groups n, n + 1 hold columns n, n + 1 of B.
__device__ __forceinline__ void mma_bf16_by_shuffles(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const int lane = threadIdx.x % WARP, group = lane / 4, column = 2 * (lane % 4);
#pragma unroll 1  // a real loop: unrolled, the shuffles of many mma instructions start at once and their results spill
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 upper = unpack<__nv_bfloat16>(__shfl_sync(FULL_MASK, a[2 * half], group * 4 + k));
      const float2 lower = unpack<__nv_bfloat16>(__shfl_sync(FULL_MASK, a[2 * half + 1], group * 4 + k));
      const float2 left = unpack<__nv_bfloat16>(__shfl_sync(FULL_MASK, b[half], column * 4 + k));
      const float2 right = unpack<__nv_bfloat16>(__shfl_sync(FULL_MASK, b[half], column * 4 + 4 + k));
      d[0] += upper.x * left.x + upper.y * left.y;
      d[1] += upper.x * right.x + upper.y * right.y;
      d[2] += lower.x * left.x + lower.y * left.y;
      d[3] += lower.x * right.x + lower.y * right.y;
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

// Copies 16 bytes from global to shared memory (both 16-byte aligned), in the background where the GPU can; zeros if
// not `inside`, and `global` is then not read. The data is there for this thread after cp_async_wait, for others after
// a barrier too.
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

// Waits until at most PENDING of this thread's latest groups are in flight.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
#if TARGET_ARCH >= 800
  ptx_cp_async_wait<PENDING>();
#endif
}
