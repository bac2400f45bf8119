// The random bits of ../philox.py, four 32-bit numbers per counter.
#pragma once

constexpr int PHILOX_COUNTERS = 16;  // of a block of 64 columns

// The seed of a call: a number or, if the address is not null, the value there when the kernel runs, so that each launch
// of a CUDA graph has its own.
struct Seed {
  const long long *at;
  long long number;

  // Read at each use, hidden from the compiler, which would otherwise keep the keys of all rounds in 20 registers
  // through the surrounding loops.
  __device__ __forceinline__ unsigned long long read() const {
    const unsigned long long seed = at ? *at : number;
    unsigned low = (unsigned)seed, high = (unsigned)(seed >> 32);
    asm volatile("" : "+r"(low), "+r"(high));
    return (unsigned long long)high << 32 | low;
  }
};

// The words of columns 64 * block + i + {0, 16, 32, 48} of `row`, counter being 16 * block + i.
__device__ __forceinline__ uint4 philox(unsigned counter, unsigned long long row, unsigned long long seed) {
  unsigned first = counter, second = (unsigned)row, third = (unsigned)(row >> 32), fourth = 0;
  unsigned low_key = (unsigned)seed, high_key = (unsigned)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long even = (unsigned long long)first * 0xD2511F53u;
    const unsigned long long odd = (unsigned long long)third * 0xCD9E8D57u;
    first = (unsigned)(odd >> 32) ^ second ^ low_key;
    second = (unsigned)odd;
    third = (unsigned)(even >> 32) ^ fourth ^ high_key;
    fourth = (unsigned)even;
    low_key += 0x9E3779B9u;
    high_key += 0xBB67AE85u;
  }
  return make_uint4(first, second, third, fourth);
}
