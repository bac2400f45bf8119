// Small kernels, right and wrong, that show what the emulator computes and what it notices.
#include "mma.cuh"

// ---- right ------------------------------------------------------------------------------------------------------

// Each thread reads what another of its block may not have written yet: a barrier is missing.
__global__ void reverse(const int *input, int *output) {
  SHARED_ARRAY(int, held, 128);
  held[threadIdx.x] = input[threadIdx.x];
  output[threadIdx.x] = held[127 - threadIdx.x];
}

// Eight results per lane: what each warp operation gives.
__global__ void warp_operations(int *output) {
  const int lane = threadIdx.x;
  const unsigned evens = __ballot_sync(FULL_MASK, lane % 2 == 0);
  int *mine = output + lane * 8;
  mine[0] = __shfl_sync(FULL_MASK, lane, 5);
  mine[1] = __shfl_xor_sync(FULL_MASK, lane, 3);
  mine[2] = __shfl_down_sync(FULL_MASK, lane, 2);
  mine[3] = __shfl_up_sync(FULL_MASK, lane, 2, 8);
  mine[4] = evens;
  mine[5] = __any_sync(FULL_MASK, lane == 7) + 2 * __all_sync(FULL_MASK, lane < 7);
  // The halves of the warp go separate ways and meet among themselves.
  mine[6] = lane < 16 ? __shfl_sync(0x0000ffff, lane, 3) : __shfl_sync(0xffff0000, lane, 20);
  __syncwarp();
  mine[7] = __popc(evens);
}

// Rounding once or twice; numbers below the normal ones as operand, as result, and as what a half becomes.
__global__ void arithmetic(const float *input, const __half *half, float *output) {
  output[0] = input[0] * input[0] - input[1];
  output[1] = input[2] * 2.f;
  output[2] = input[3] * input[3];
  output[3] = to_float(*half);
}

// The functions whose results CUDA lets be off.
__global__ void functions(const float *input, float *output) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x;
  const float x = input[index];
  const float values[7] = {exp2f(x), expf(x), logf(x), erff(x), tanhf(x), rsqrtf(x), __fdividef(x, 1.f + x)};
  for (int i = 0; i < 7; ++i) output[i * count + index] = values[i];
}

template <class T> __global__ void extent(T *output) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  output[block * blockDim.x * blockDim.y * blockDim.z + thread] = from_float<T>(block + thread / 100.f);
}

// A product of 16x16 and 16x8 the way the kernels do it: cp.async, ldmatrix, mma.
template <bool AWAITED> __global__ void product(const __half *a, const __half *b, float *output) {
  SHARED_ARRAY(uint4, shared_a, 32);
  SHARED_ARRAY(uint4, shared_b, 32);
  const int lane = threadIdx.x;
  cp_async(&shared_a[lane], reinterpret_cast<const uint4 *>(a) + lane);
  cp_async(&shared_b[lane], reinterpret_cast<const uint4 *>(b) + lane, lane < 16);
  cp_async_commit();
  if (AWAITED) cp_async_wait<0>();
  __syncthreads();
  unsigned fragment_a[4], fragment_b[2];
  float d[4] = {};
  ptx_ldmatrix_x4(fragment_a, &shared_a[(lane & 15) * 2 + lane / 16]);
  ptx_ldmatrix_x2_trans(fragment_b, &shared_b[lane & 15]);
  mma<__half>(d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) output[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// Uses the memory again while a copy to it is under way: what is read depends on when that arrives.
__global__ void overtaken(const float4 *input, float4 *output) {
  SHARED_ARRAY(float4, held, 32);
  cp_async(&held[threadIdx.x], &input[threadIdx.x]);
  cp_async_commit();
  held[threadIdx.x] = float4();
  __syncwarp();
  output[threadIdx.x] = held[threadIdx.x];
  cp_async_wait<0>();
}

// ---- wrong ------------------------------------------------------------------------------------------------------

__global__ void uncommitted(const float4 *input) {
  SHARED_ARRAY(float4, held, 32);
  cp_async(&held[threadIdx.x], &input[threadIdx.x]);
  cp_async_wait<0>();
}

enum { READ_AFTER, WRITE_AFTER, WRITE_BEFORE, WRITE_INTO_CANARY };

template <int CASE> __device__ void overrun(unsigned char *memory, int bytes, float *output) {
  if (threadIdx.x != 5 || blockIdx.x != 1) return;
  if (CASE == READ_AFTER) *output = memory[bytes + 4096];
  if (CASE == WRITE_AFTER) memory[bytes + 4096] = 0;
  if (CASE == WRITE_BEFORE) memory[-4097] = 0;
  if (CASE == WRITE_INTO_CANARY) memory[bytes] = 0;
}

template <int CASE> __global__ void overrun_dynamic(int bytes, float *output) {
  DYNAMIC_SHARED(shared);
  overrun<CASE>(shared, bytes, output);
}

template <int CASE> __global__ void overrun_static(float *output) {
  SHARED_ARRAY(unsigned char, shared, 100);
  overrun<CASE>(&shared[0], 100, output);
}

template <int CASE> __global__ void overrun_argument(unsigned char *memory, int bytes, float *output) {
  overrun<CASE>(memory, bytes, output);
}

__global__ void index_beyond_array(int index, float *output) {
  SHARED_ARRAY(float, shared, 8);
  output[0] = shared[index];
}

__global__ void unwritten(float *output) {
  SHARED_ARRAY(float, shared, 8);
  if (blockIdx.x == 0) shared[0] = 1.f;
  __syncthreads();
  output[blockIdx.x] = shared[0];  // block 1 must not see what block 0 left
}

__global__ void divergent_barrier() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void early_return(int count) {
  if ((int)threadIdx.x >= count) return;
  __syncthreads();
}

__global__ void absent_lane(int *output) {
  if (threadIdx.x < 16) output[threadIdx.x] = __shfl_sync(0x0000ffff, (int)threadIdx.x, 20);
}

__global__ void half_a_warp(int *output) {
  if (threadIdx.x < 16) output[threadIdx.x] = __shfl_xor_sync(FULL_MASK, (int)threadIdx.x, 1);
}

__global__ void different_operations(int *output) {
  const int lane = threadIdx.x;
  output[lane] = lane < 16 ? __shfl_sync(FULL_MASK, lane, 0) : __shfl_xor_sync(FULL_MASK, lane, 1);
}

__global__ void misaligned(const float *input, float *output) {
  *reinterpret_cast<uint4 *>(output) = *reinterpret_cast<const uint4 *>(input + 1);
}

__global__ void write(float *output) { output[0] = 1.f; }

__global__ void divide(int divisor, int *output) { output[0] = 7 / divisor; }

__device__ int depth(int n) {
  volatile char frame[1024];
  frame[n % 1024] = 1;
  return n == 0 ? 0 : depth(n - 1) + frame[n % 1024];
}
__global__ void deep_recursion(int *output) { output[0] = depth(1000); }

// ---- races, which the race check finds under any schedule ---------------------------------------------------------

enum {
  READ_TOO_EARLY,
  WRITE_TOO_EARLY,
  TWO_WRITES,
  PARTIAL,
  WITHIN_A_WARP,
  BESIDE_A_COPY,
  COPY_OF_ANOTHER,
  ATOMIC_AND_PLAIN,
  IN_GLOBAL_MEMORY
};

// Each wrong if WRONG, and right by the barrier, wait or atomic that is left out then.
template <int CASE, bool WRONG> __global__ void race(const float4 *input, float *output) {
  SHARED_ARRAY(float4, copied, 64);
  SHARED_ARRAY(float, held, 64);
  const int thread = threadIdx.x, other = thread ^ (CASE == WITHIN_A_WARP ? 1 : 32);
  held[thread] = thread;
  if (CASE == READ_TOO_EARLY) {
    if (!WRONG) __syncthreads();
    output[thread] = held[other];
  } else if (CASE == WRITE_TOO_EARLY) {
    __syncthreads();
    output[thread] = held[other];
    if (!WRONG) __syncthreads();
    held[thread] = 0;
  } else if (CASE == TWO_WRITES) {
    if (!WRONG) __syncthreads();
    if (WRONG || thread == 0) held[0] = 1;
  } else if (CASE == PARTIAL) {  // bytes 4 to 7 as part of a vector
    if (!WRONG) __syncthreads();
    if (thread == 0) *reinterpret_cast<float2 *>(output) = *reinterpret_cast<const float2 *>(held);
  } else if (CASE == WITHIN_A_WARP) {
    if (!WRONG) __syncwarp();
    else __shfl_sync(FULL_MASK, thread, 0);  // orders no memory
    output[thread] = held[other];
  } else if (CASE == BESIDE_A_COPY || CASE == COPY_OF_ANOTHER) {
    cp_async(&copied[thread], &input[thread]);
    cp_async_commit();
    if (!WRONG || CASE == COPY_OF_ANOTHER) cp_async_wait<0>();
    if (!WRONG || CASE == BESIDE_A_COPY) __syncthreads();
    output[thread] = copied[CASE == BESIDE_A_COPY ? thread : other].x;
  } else if (CASE == ATOMIC_AND_PLAIN) {
    __syncthreads();
    if (!WRONG || thread) atomicAdd(&held[0], 1.f);
    else held[0] += 1;
  } else if (CASE == IN_GLOBAL_MEMORY) {
    output[blockIdx.x * (WRONG ? 63 : 64) + thread] = thread;
  }
}
