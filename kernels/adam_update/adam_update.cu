// One step of Adam's family in place, float32. AdamW takes one pass. The other rules sum first: each block leaves its two
// sums, and each block of the second pass adds them all up in the same order, so that no host waits for them.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int ITEMS = 16;  // elements of a thread where there are sums
enum Rule { ADAMW, STABLE_ADAMW, LAMB };

struct Numbers {
  float lr, keep1, take1, keep2, take2, scale1, scale2, eps, weight_decay;
};

__device__ __forceinline__ float step_of(float parameter, float m, float v, const Numbers &n) {
  return n.scale1 * m / (sqrtf(v) * n.scale2 + n.eps) + n.weight_decay * parameter;
}

// Moves the moments of element i; returns its gradient.
__device__ __forceinline__ float move_moments(float *first, float *second, const float *grad, long long i,
                                              const Numbers &n) {
  const float g = grad[i];
  first[i] = n.keep1 * first[i] + n.take1 * g;
  second[i] = n.keep2 * second[i] + n.take2 * (g * g);
  return g;
}

__global__ void __launch_bounds__(THREADS)
    adamw(float *__restrict__ parameter, float *__restrict__ first, float *__restrict__ second,
          const float *__restrict__ grad, long long size, Numbers n) {
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i >= size) return;
  move_moments(first, second, grad, i, n);
  parameter[i] -= n.lr * step_of(parameter[i], first[i], second[i], n);
}

// sums (blocks, 2): of LAMB |parameter|^2 and |u|^2, of StableAdamW g^2 / max(v', eps^2) and nothing.
__global__ void __launch_bounds__(THREADS)
    move_and_sum(const float *__restrict__ parameter, float *__restrict__ first, float *__restrict__ second,
                 const float *__restrict__ grad, float *__restrict__ sums, long long size, Numbers n, int rule) {
  float left = 0.f, right = 0.f;
  for (int item = 0; item < ITEMS; ++item) {
    const long long i = ((long long)blockIdx.x * ITEMS + item) * THREADS + threadIdx.x;
    if (i >= size) break;
    const float g = move_moments(first, second, grad, i, n);
    if (rule == LAMB) {
      const float update = step_of(parameter[i], first[i], second[i], n);
      left += parameter[i] * parameter[i];
      right += update * update;
    } else {
      const float root = fmaxf(sqrtf(second[i]) * n.scale2, n.eps);
      const float ratio = root > 0.f ? g / root : root;
      left += ratio * ratio;
    }
  }
  left = block_reduce<Sum, THREADS>(left);
  right = block_reduce<Sum, THREADS>(right);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = left;
    sums[2 * blockIdx.x + 1] = right;
  }
}

__global__ void __launch_bounds__(THREADS)
    move_parameter(float *__restrict__ parameter, const float *__restrict__ first, const float *__restrict__ second,
                   const float *__restrict__ sums, long long size, Numbers n, int rule) {
  float left = 0.f, right = 0.f;
  for (int block = threadIdx.x; block < (int)gridDim.x; block += THREADS) {
    left += sums[2 * block];
    right += sums[2 * block + 1];
  }
  left = block_reduce<Sum, THREADS>(left);
  right = block_reduce<Sum, THREADS>(right);
  if (rule == LAMB) n.lr *= left > 0.f && right > 0.f ? sqrtf(left / right) : 1.f;
  else n.lr /= fmaxf(1.f, sqrtf(left / (float)size));
  for (int item = 0; item < ITEMS; ++item) {
    const long long i = ((long long)blockIdx.x * ITEMS + item) * THREADS + threadIdx.x;
    if (i >= size) break;
    parameter[i] -= n.lr * step_of(parameter[i], first[i], second[i], n);
  }
}
