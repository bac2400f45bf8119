// CUDA's built-in variables and functions, as kernels see them.
#pragma once
#include <cmath>

#include "scheduler.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __align__
#undef __restrict__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__

// Shared memory is declared through SHARED_ARRAY and DYNAMIC_SHARED: plain __shared__ would be neither poisoned nor
// guarded.
#undef __shared__
#define __shared__ static_assert(false, "declare shared memory with SHARED_ARRAY or DYNAMIC_SHARED (common.cuh)");
#define SHARED_ARRAY(type, name, count)                                                    \
  auto &name = *[]() -> type(*)[count] {                                                   \
    static emulator::SharedArray array("shared array '" #name "'", sizeof(type[count]));   \
    return reinterpret_cast<type(*)[count]>(array.get());                                  \
  }()
#define DYNAMIC_SHARED(name) unsigned char *name = emulator::dynamic_shared()

namespace emulator {

// One __shared__ array: a guarded piece of memory of its own, poisoned when a block first touches it.
struct SharedArray {
  GuardedMemory memory;
  uint64_t block_serial = 0;

  SharedArray(const char *label, size_t bytes) {
    memory.map(label, bytes, 16);
    machine.static_shared.push_back(&memory);
  }

  void *get() {
    if (block_serial != machine.block_serial) memory.poison();
    block_serial = machine.block_serial;
    return memory.data;
  }
};

inline unsigned char *dynamic_shared() {
  if (!machine.dynamic_shared.reservation) fail("dynamic shared memory is used, but the launch asked for 0 bytes");
  return machine.dynamic_shared.data;
}

inline bool is_shared(const void *address) {
  if (machine.dynamic_shared.reservation && machine.dynamic_shared.holds(address)) return true;
  return std::any_of(machine.static_shared.begin(), machine.static_shared.end(),
                     [&](const GuardedMemory *array) { return array->holds(address); });
}

}  // namespace emulator

#define threadIdx (emulator::machine.current->index)
#define blockIdx (emulator::machine.block)
#define blockDim (emulator::machine.block_extent)
#define gridDim (emulator::machine.grid_extent)
#define warpSize 32

// ---- barriers, warp operations ----------------------------------------------------------------------------------

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::meet_block(file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::exchange(mask, "__syncwarp", char(), [](auto) { return 0; }, true);
}

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = emulator::machine.current->lane;
  return emulator::exchange(mask, "__shfl_sync", value,
                            [&](auto of) { return of((lane & ~(width - 1)) | (source & (width - 1))); });
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
  const unsigned lane = emulator::machine.current->lane, source = lane ^ flip;
  return emulator::exchange(mask, "__shfl_xor_sync", value,
                            [&](auto of) { return of(source <= (lane | (width - 1)) ? source : lane); });
}

template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = emulator::machine.current->lane, source = lane + delta;
  return emulator::exchange(mask, "__shfl_down_sync", value,
                            [&](auto of) { return of(source <= (lane | (width - 1)) ? source : lane); });
}

template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emulator::machine.current->lane, source = lane - (int)delta;
  return emulator::exchange(mask, "__shfl_up_sync", value,
                            [&](auto of) { return of(source >= (lane & ~(width - 1)) ? source : lane); });
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return emulator::exchange(mask, "__ballot_sync", predicate != 0, [&](auto of) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (mask >> lane & 1) votes |= unsigned(of(lane)) << lane;
    return votes;
  });
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// ---- memory -----------------------------------------------------------------------------------------------------

template <class T, class U> NOT_CHECKED NOT_INLINED T atomicAdd(T *address, U value) {
  emulator::races_atomic(address, sizeof(T), CALLER);
  const T old = *address;
  *address = old + T(value);
  return old;
}
template <class T> NOT_CHECKED NOT_INLINED T atomicMax(T *address, T value) {
  emulator::races_atomic(address, sizeof(T), CALLER);
  const T old = *address;
  if (value > old) *address = value;
  return old;
}
template <class T> NOT_CHECKED NOT_INLINED T atomicExch(T *address, T value) {
  emulator::races_atomic(address, sizeof(T), CALLER);
  const T old = *address;
  *address = value;
  return old;
}
template <class T> NOT_CHECKED NOT_INLINED T atomicCAS(T *address, T expected, T value) {
  emulator::races_atomic(address, sizeof(T), CALLER);
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
template <class T> T __ldg(const T *address) { return *address; }
template <class T> T __ldcs(const T *address) { return *address; }
template <class T> void __stcs(T *address, T value) { *address = value; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulator::step_aside(); }

// ---- what float arithmetic does with the numbers below the normal ones -------------------------------------------

namespace emulator {
#if defined(__x86_64__)
constexpr unsigned FLUSH_TO_ZERO = 0x8040;  // results, and operands
inline unsigned float_control() { return __builtin_ia32_stmxcsr(); }
inline void set_float_control(unsigned word) { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
constexpr unsigned FLUSH_TO_ZERO = 1u << 24;
inline unsigned float_control() { return __builtin_aarch64_get_fpcr(); }
inline void set_float_control(unsigned word) { __builtin_aarch64_set_fpcr(word); }
#else
#error "how this CPU flushes to zero is not known here"
#endif
}  // namespace emulator

// ---- arithmetic -------------------------------------------------------------------------------------------------

using std::max;
using std::min;
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __saturatef(float x) { return x > 0.f ? min(x, 1.f) : 0.f; }
inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
inline int __float_as_int(float value) {
  int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline unsigned __float_as_uint(float value) { return (unsigned)__float_as_int(value); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }

// ---- functions whose results CUDA lets be off (CUDA C++ Programming Guide, Mathematical Functions) ----------------

namespace emulator {

// `exact` off by up to `ulps` units in the last place: by how many, and to which side, depends on the arguments alone.
inline float off_by(int ulps, float exact, float argument, float other = 0.f) {
  if (!std::isnormal(exact) || std::fabs(exact) > 3e38f || argument == 0.f) return exact;
  const unsigned mixed = (__float_as_uint(argument) ^ 40503u * __float_as_uint(other)) * 2654435769u;
  return __int_as_float(__float_as_int(exact) + int((mixed >> 16) % (2 * ulps + 1)) - ulps);
}

inline float exp2_of_gpu(float x) { return off_by(2, std::exp2(x), x); }
inline float exp_of_gpu(float x) { return off_by(2, std::exp(x), x); }
inline float log_of_gpu(float x) { return off_by(1, std::log(x), x); }
inline float erf_of_gpu(float x) { return off_by(2, std::erf(x), x); }
inline float tanh_of_gpu(float x) { return off_by(2, std::tanh(x), x); }

}  // namespace emulator

#define exp2f emulator::exp2_of_gpu
#define expf emulator::exp_of_gpu
#define logf emulator::log_of_gpu
#define erff emulator::erf_of_gpu
#define tanhf emulator::tanh_of_gpu
inline float rsqrtf(float x) { return emulator::off_by(2, 1.f / std::sqrt(x), x); }
inline float __fdividef(float a, float b) {
  if (std::fabs(b) > 0x1p126f && std::isfinite(b)) return 0.f * a;
  const bool is_power_of_two = (__float_as_uint(b) & 0x7fffff) == 0;
  return is_power_of_two ? a / b : emulator::off_by(2, a / b, a, b);
}
