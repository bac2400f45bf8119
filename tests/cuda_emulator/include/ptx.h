// The functions of kernels/_cuda/ptx.cuh on the CPU.
#pragma once
#include "device.h"

namespace emulator {

inline float element(__half, uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(raw);
}
inline float element(__nv_bfloat16, uint16_t bits) { return __uint_as_float(unsigned(bits) << 16); }

// To the nearest float that is not larger in size: tensor cores cut off what they do not keep (Fasi, Higham, Mikaitis and
// Pranesh 2021, "Numerical behavior of NVIDIA tensor cores").
inline float toward_zero(double value) {
  const float nearest = value;
  const bool is_beyond = std::fabs(nearest) > std::fabs(value) && std::isfinite(nearest);
  return is_beyond ? __int_as_float(__float_as_int(nearest) - 1) : nearest;
}

// d += A B, from the elements that the 32 lanes hold (layouts: ptx.cuh). A has 8 columns per pair of its registers.
template <class T, int PAIRS>
void mma(const char *name, float (&d)[4], const unsigned (&a)[2 * PAIRS], const unsigned (&b)[PAIRS]) {
  struct Fragment {
    float a[PAIRS][2][2], b[PAIRS][2];  // [columns][upper or lower row][element], [rows][element]
  } own;
  static_assert(sizeof(Fragment) <= sizeof(Exchange::data[0]));
  for (int p = 0; p < PAIRS; ++p)
    for (int e = 0; e < 2; ++e) {
      own.a[p][0][e] = element(T(), a[2 * p] >> 16 * e);
      own.a[p][1][e] = element(T(), a[2 * p + 1] >> 16 * e);
      own.b[p][e] = element(T(), b[p] >> 16 * e);
    }
  const unsigned lane = machine.current->lane, group = lane / 4, column = 2 * (lane % 4);
  exchange(0xffffffffu, name, own, [&](auto of) {
    const unsigned control = float_control();
    set_float_control(control & ~FLUSH_TO_ZERO);  // tensor cores take and give such numbers as they are
    double sums[4] = {d[0], d[1], d[2], d[3]};
    for (unsigned k = 0; k < 4; ++k) {
      const Fragment row = of(group * 4 + k), left = of(column * 4 + k), right = of(column * 4 + 4 + k);
      for (int p = 0; p < PAIRS; ++p)
        for (int e = 0; e < 2; ++e)
          for (int half = 0; half < 2; ++half) {
            sums[2 * half] += double(row.a[p][half][e]) * left.b[p][e];
            sums[2 * half + 1] += double(row.a[p][half][e]) * right.b[p][e];
          }
    }
    for (int i = 0; i < 4; ++i) d[i] = toward_zero(sums[i]);
    set_float_control(control);
    return 0;
  });
}

template <int MATRICES>
void ldmatrix(const char *name, unsigned (&r)[MATRICES], const void *row, bool trans, const void *instruction) {
  machine.current->instruction = instruction;
  const unsigned lane = machine.current->lane;
  if (lane < 8 * MATRICES) {
    if (reinterpret_cast<uintptr_t>(row) % 16) fail("%s: the row's address is not a multiple of 16", name);
    if (!is_shared(row) || !is_shared(static_cast<const char *>(row) + 15))
      fail("%s: the row is not in shared memory", name);
  }
  exchange(0xffffffffu, name, static_cast<const uint16_t *>(row), [&](auto of) {
    for (int i = 0; i < MATRICES; ++i) {
      r[i] = 0;
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned across = 2 * (lane % 4) + e, along = lane / 4;
        r[i] |= unsigned(trans ? of(8 * i + across)[along] : of(8 * i + along)[across]) << 16 * e;
      }
    }
    return 0;
  });
  machine.current->instruction = nullptr;
}

}  // namespace emulator

inline void ptx_store_16(void *global, uint4 data) { *static_cast<uint4 *>(global) = data; }

inline void ptx_mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulator::mma<__half, 2>("mma.m16n8k16.f16", d, a, b);
}
inline void ptx_mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulator::mma<__nv_bfloat16, 2>("mma.m16n8k16.bf16", d, a, b);
}
inline void ptx_mma_m16n8k8_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  emulator::mma<__half, 1>("mma.m16n8k8.f16", d, {a0, a1}, {b0});
}

NOT_INLINED inline void ptx_ldmatrix_x4(unsigned (&r)[4], const void *row) {
  emulator::ldmatrix("ldmatrix.x4", r, row, false, CALLER);
}
NOT_INLINED inline void ptx_ldmatrix_x4_trans(unsigned (&r)[4], const void *row) {
  emulator::ldmatrix("ldmatrix.x4.trans", r, row, true, CALLER);
}
NOT_INLINED inline void ptx_ldmatrix_x2_trans(unsigned (&r)[2], const void *row) {
  emulator::ldmatrix("ldmatrix.x2.trans", r, row, true, CALLER);
}

// The bytes arrive when they are waited for (at any time before under the schedule RANDOM); until then the destination
// is poisoned.
NOT_CHECKED NOT_INLINED inline void ptx_cp_async_16(void *shared, const void *global, int bytes) {
  using emulator::machine;
  if (reinterpret_cast<uintptr_t>(shared) % 16) emulator::fail("cp.async: the shared address is not a multiple of 16");
  if (!emulator::is_shared(shared)) emulator::fail("cp.async: the destination is not in shared memory");
  if (bytes && reinterpret_cast<uintptr_t>(global) % 16)
    emulator::fail("cp.async: the global address is not a multiple of 16");
  emulator::PendingCopy copy{static_cast<unsigned char *>(shared), {}, machine.current->copy_group, CALLER, false};
  emulator::races_issue(copy, global, bytes);
  memcpy(copy.data, global, bytes);
  memset(shared, emulator::POISON, 16);
  machine.current->copies.push_back(copy);
}
inline void ptx_cp_async_commit() { ++emulator::machine.current->copy_group; }
template <int PENDING> void ptx_cp_async_wait() {
  const unsigned committed = emulator::machine.current->copy_group;
  if (committed > PENDING) emulator::finish_copies(committed - PENDING);
}
