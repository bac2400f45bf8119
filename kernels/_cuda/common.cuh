// What every kernel shares: conversions to and from float, rows read in 16-byte vectors, warp and block reductions.
#ifndef CUDA_EMULATOR
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define SHARED_ARRAY(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif
#ifndef INFINITY  // NVRTC has no such macro
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

constexpr int WARP = 32;
constexpr unsigned FULL_MASK = 0xffffffffu;

// ---- conversions ------------------------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// Rounds to nearest even.
template <class T> __device__ __forceinline__ T from_float(float value);
template <> __device__ __forceinline__ float from_float<float>(float value) { return value; }
template <> __device__ __forceinline__ __half from_float<__half>(float value) { return __float2half_rn(value); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// ---- vectors of 16 bytes ----------------------------------------------------------------------------------------

// As many T as one 16-byte load or store moves.
template <class T> struct __align__(16) Vector {
  static constexpr int SIZE = 16 / sizeof(T);
  T value[SIZE];
};

__device__ __forceinline__ bool is_aligned(const void *pointer) { return (size_t)pointer % 16 == 0; }

// How many elements `pointer` lies beyond the last 16-byte boundary.
template <class T> __device__ __forceinline__ int misalignment(const T *pointer) {
  return (int)((size_t)pointer % 16 / sizeof(T));
}

// values[i] = array[begin + i] as float, `outside` where begin + i is not in [0, count). One 16-byte load when the vector
// lies inside and on a 16-byte boundary, else element by element: heads, tails and misaligned rows are correct, only slower.
template <class T>
__device__ __forceinline__ void load_vector(float (&values)[Vector<T>::SIZE], const T *array, long long begin,
                                            long long count, float outside) {
  constexpr int SIZE = Vector<T>::SIZE;
  if (begin >= 0 && begin + SIZE <= count && is_aligned(array + begin)) {
    const Vector<T> vector = *reinterpret_cast<const Vector<T> *>(array + begin);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = to_float(vector.value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      const bool inside = begin + i >= 0 && begin + i < count;
      values[i] = inside ? to_float(array[begin + i]) : outside;
    }
  }
}

// array[begin + i] = values[i] wherever begin + i is in [0, count).
template <class T>
__device__ __forceinline__ void store_vector(T *array, long long begin, long long count,
                                             const float (&values)[Vector<T>::SIZE]) {
  constexpr int SIZE = Vector<T>::SIZE;
  if (begin >= 0 && begin + SIZE <= count && is_aligned(array + begin)) {
    Vector<T> vector;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) vector.value[i] = from_float<T>(values[i]);
    *reinterpret_cast<Vector<T> *>(array + begin) = vector;
  } else {
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
      if (begin + i >= 0 && begin + i < count) array[begin + i] = from_float<T>(values[i]);
  }
}

// ---- reductions -------------------------------------------------------------------------------------------------

struct Sum {
  static __device__ __forceinline__ float identity() { return 0.f; }
  static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};

// The larger of two; a NaN loses against a number.
struct Max {
  static __device__ __forceinline__ float identity() { return -INFINITY; }
  static __device__ __forceinline__ float combine(float a, float b) { return fmaxf(a, b); }
};

// Combines `value` over groups of LANES neighbouring lanes (a power of two); every lane gets its group's result.
template <class Op, int LANES = WARP> __device__ __forceinline__ float warp_reduce(float value) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2)
    value = Op::combine(value, __shfl_xor_sync(FULL_MASK, value, offset));
  return value;
}

// Combines `value` over a block of THREADS threads (a multiple of 32); every thread gets the result.
template <class Op, int THREADS> __device__ __forceinline__ float block_reduce(float value) {
  constexpr int WARPS = THREADS / WARP;
  SHARED_ARRAY(float, partial, WARPS);
  value = warp_reduce<Op>(value);
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
  __syncthreads();
  value = threadIdx.x % WARP < WARPS ? partial[threadIdx.x % WARP] : Op::identity();
  __syncthreads();  // the next reduction may write `partial` only when everybody has read it
  return warp_reduce<Op>(value);
}

// Combines over the GROUP threads that share a row: a whole block, or one warp of it.
template <class Op, int GROUP> __device__ __forceinline__ float group_reduce(float value) {
  if constexpr (GROUP <= WARP) return warp_reduce<Op, GROUP>(value);
  else return block_reduce<Op, GROUP>(value);
}
