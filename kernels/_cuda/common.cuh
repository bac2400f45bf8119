// Common to all kernels: conversions to and from float, rows read in 16-byte vectors, warp and block reductions.
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

#include "ptx.cuh"

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

// Two values rounded to T in one register, `low` in the lower half; and back.
template <class T> __device__ __forceinline__ unsigned pack(float low, float high);
template <> __device__ __forceinline__ unsigned pack<__half>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned *>(&both);
}
template <> __device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned *>(&both);
}
template <class T> __device__ __forceinline__ float2 unpack(unsigned both);
template <> __device__ __forceinline__ float2 unpack<__half>(unsigned both) {
  return __half22float2(*reinterpret_cast<const __half2 *>(&both));
}
template <> __device__ __forceinline__ float2 unpack<__nv_bfloat16>(unsigned both) {
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

// ---- vectors of 16 bytes ----------------------------------------------------------------------------------------

// Elements of T in 16 bytes, the size of one load or store.
template <class T> constexpr int VECTOR = 16 / sizeof(T);

// 16 bytes as elements; to_floats, pack_floats and load_packed take them packed, as a uint4.
template <class T> struct __align__(16) Vector {
  static constexpr int SIZE = VECTOR<T>;
  T value[SIZE];
};

template <class T> __device__ __forceinline__ void to_floats(float (&values)[VECTOR<T>], const uint4 &vector) {
  const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (VECTOR<T> == 4) {
      values[i] = __uint_as_float(words[i]);
    } else {
      const float2 both = unpack<T>(words[i]);
      values[2 * i] = both.x;
      values[2 * i + 1] = both.y;
    }
  }
}

template <class T> __device__ __forceinline__ uint4 pack_floats(const float (&values)[VECTOR<T>]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if constexpr (VECTOR<T> == 4) words[i] = __float_as_uint(values[i]);
    else words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ bool is_aligned(const void *pointer) { return (size_t)pointer % 16 == 0; }

// How many elements `pointer` is beyond the last 16-byte boundary.
template <class T> __device__ __forceinline__ int misalignment(const T *pointer) {
  return (int)((size_t)pointer % 16 / sizeof(T));
}

// A parameter of this type follows the type of another. Positions in short arrays are int: long long costs the layer
// norm of half precision a third more registers.
template <class Index> struct Same {
  using type = Index;
};

// array[begin] to array[begin + VECTOR - 1], `outside` where the index is not in [0, count). One 16-byte load if the
// vector is inside and on a 16-byte boundary, else element by element: heads, tails and misaligned arrays are right,
// only slower. The vector stays packed until all loads are in flight: converted at once, or split into elements of T,
// each load waits for the previous one.
template <class T, class Index>
__device__ __forceinline__ uint4 load_packed(const T *array, Index begin, typename Same<Index>::type count,
                                             float outside) {
  if (begin >= 0 && begin + VECTOR<T> <= count && is_aligned(array + begin))
    return *reinterpret_cast<const uint4 *>(array + begin);
  float values[VECTOR<T>];
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i)
    values[i] = begin + i >= 0 && begin + i < count ? to_float(array[begin + i]) : outside;
  return pack_floats<T>(values);
}

// array[begin + i] = values[i] wherever begin + i is in [0, count).
template <class T, class Index>
__device__ __forceinline__ void store_vector(T *array, Index begin, typename Same<Index>::type count,
                                             const float (&values)[VECTOR<T>]) {
  Vector<T> vector;
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) vector.value[i] = from_float<T>(values[i]);
  if (begin >= 0 && begin + VECTOR<T> <= count && is_aligned(array + begin)) {
    ptx_store_16(array + begin, *reinterpret_cast<const uint4 *>(&vector));
    return;
  }
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i)
    if (begin + i >= 0 && begin + i < count) array[begin + i] = vector.value[i];
}

// The same for arrays that begin and end on 16-byte boundaries if ALIGNED, with `begin` on a boundary and inside.
template <bool ALIGNED, class T, class Index>
__device__ __forceinline__ uint4 load_vector(const T *array, Index begin, typename Same<Index>::type count) {
  if constexpr (ALIGNED) return *reinterpret_cast<const uint4 *>(array + begin);
  else return load_packed(array, begin, count, 0.f);
}
template <bool ALIGNED, class T, class Index>
__device__ __forceinline__ void store_vector(T *array, Index begin, typename Same<Index>::type count,
                                             const float (&values)[VECTOR<T>]) {
  if constexpr (ALIGNED) *reinterpret_cast<uint4 *>(array + begin) = pack_floats<T>(values);
  else store_vector(array, begin, count, values);
}

// The vector that a thread has of a row, in a block with VECTOR_COLUMNS vectors of blockDim.y rows.
// Without a division: in 64 bits, it costs as much as the vector.
constexpr int VECTOR_COLUMNS = 32;  // as in _cuda/__init__.py

template <class T> struct VectorOfRow {
  long long row;
  int begin;

  __device__ __forceinline__ VectorOfRow()
      : row((long long)blockIdx.x * blockDim.y + threadIdx.y),
        begin((blockIdx.y * VECTOR_COLUMNS + threadIdx.x) * VECTOR<T>) {}
};

// ---- reductions -------------------------------------------------------------------------------------------------

struct Sum {
  static __device__ __forceinline__ float identity() { return 0.f; }
  static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};

// The larger of two numbers; the number if the other is NaN.
struct Max {
  static __device__ __forceinline__ float identity() { return -INFINITY; }
  static __device__ __forceinline__ float combine(float a, float b) { return fmaxf(a, b); }
};

// Combines `value` over a warp, or over groups of LANES neighbouring lanes; every lane gets its group's result.
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
  __syncthreads();  // all threads have read `partial` before the next reduction writes it
  return warp_reduce<Op>(value);
}

// Combines over the GROUP threads that share a row: a block, or one warp of it. Blocks are one-dimensional.
template <class Op, int GROUP> __device__ __forceinline__ float group_reduce(float value) {
  if constexpr (GROUP == WARP) return warp_reduce<Op>(value);
  else return block_reduce<Op, GROUP>(value);
}
