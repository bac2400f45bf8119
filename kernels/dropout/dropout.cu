// Dropout of a flat array: one counter, with the bits of four elements, per thread.
#include "common.cuh"
#include "philox.cuh"

template <class T>
__global__ void __launch_bounds__(256)
    dropout(const T *__restrict__ input, const T *__restrict__ residual, T *__restrict__ output, long long size,
            const long long *__restrict__ seed_at, long long seed, unsigned threshold, float factor) {
  const long long counter = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long first = counter / PHILOX_COUNTERS * (4 * PHILOX_COUNTERS) + counter % PHILOX_COUNTERS;
  if (first >= size) return;
  const uint4 words = philox((unsigned)counter, 0, Seed{seed_at, seed}.read());
  const unsigned bits[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const long long i = first + k * PHILOX_COUNTERS;
    if (i >= size) return;
    const float kept = bits[k] >= threshold ? to_float(input[i]) * factor : 0.f;
    output[i] = from_float<T>(residual ? kept + to_float(residual[i]) : kept);
  }
}
