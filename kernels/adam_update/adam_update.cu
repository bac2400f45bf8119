// One step of Adam's family in place, float32. AdamW takes one pass over the arrays of all parameters. The other rules
// sum first: each block leaves its two sums, and each block of the second pass adds them all up in the same order, so
// that no host waits for them.
//
// `scales`: what depends on the number of the step, where that is known to the device alone (scales_at_step); else null.
// `grad_scale`: what gradients are multiplied by, or null; where it is inf or NaN nothing is done.
#include "common.cuh"
#include "many.cuh"

constexpr int THREADS = 256;
constexpr int ITEMS = 16;  // elements of a thread where there are sums
enum Rule { ADAMW, STABLE_ADAMW, LAMB };

struct Numbers {
  float lr, keep1, take1, keep2, take2, scale1, scale2, eps, weight_decay, grad_scale;
};

// The numbers with what the device knows of them; false where there is nothing to do.
__device__ __forceinline__ bool complete(Numbers &n, const float *scales, const float *grad_scale) {
  if (scales != nullptr) {
    n.scale1 = scales[0];
    n.scale2 = scales[1];
  }
  if (grad_scale != nullptr) n.grad_scale = *grad_scale;
  return fabsf(n.grad_scale) < INFINITY;
}

__device__ __forceinline__ float step_of(float parameter, float m, float v, const Numbers &n) {
  return n.scale1 * m / (sqrtf(v) * n.scale2 + n.eps) + n.weight_decay * parameter;
}

// Moves both moments by the gradient `g`.
__device__ __forceinline__ void move_moments(float &first, float &second, float g, const Numbers &n) {
  first = n.keep1 * first + n.take1 * g;
  second = n.keep2 * second + n.take2 * (g * g);
}

__device__ __forceinline__ void update(float &parameter, float &first, float &second, float grad, const Numbers &n) {
  move_moments(first, second, grad * n.grad_scale, n);
  parameter -= n.lr * step_of(parameter, first, second, n);
}

__device__ __forceinline__ void update(float4 &parameter, float4 &first, float4 &second, const float4 &grad,
                                       const Numbers &n) {
  update(parameter.x, first.x, second.x, grad.x, n);
  update(parameter.y, first.y, second.y, grad.y, n);
  update(parameter.z, first.z, second.z, grad.z, n);
  update(parameter.w, first.w, second.w, grad.w, n);
}

// scales[0] = 1 / (1 - beta1^step), scales[1] = (1 - beta2^step)^-1/2; one thread.
__global__ void scales_at_step(const long long *__restrict__ step, float *__restrict__ scales, double beta1,
                               double beta2) {
  scales[0] = (float)(1. / (1. - pow(beta1, (double)*step)));
  scales[1] = (float)(1. / sqrt(1. - pow(beta2, (double)*step)));
}

// A row of the table has the addresses of a parameter, its gradient, first and second moment.
__global__ void __launch_bounds__(MANY_THREADS)
    adamw(const Row<4> *__restrict__ rows, int row_count, Numbers n, const float *__restrict__ scales,
          const float *__restrict__ grad_scale) {
  if (!complete(n, scales, grad_scale)) return;
  const Chunk<4> chunk(rows, row_count);
  float *parameter = chunk.array<float>(0), *first = chunk.array<float>(2), *second = chunk.array<float>(3);
  const float *grad = chunk.array<float>(1);
  const bool has_vectors = is_aligned(parameter) && is_aligned(grad) && is_aligned(first) && is_aligned(second);
  const int vectors = has_vectors ? chunk.count / 4 : 0;
  for (int i = threadIdx.x; i < vectors; i += MANY_THREADS) {
    float4 p = reinterpret_cast<float4 *>(parameter)[i];
    float4 m = reinterpret_cast<float4 *>(first)[i], v = reinterpret_cast<float4 *>(second)[i];
    update(p, m, v, reinterpret_cast<const float4 *>(grad)[i], n);
    reinterpret_cast<float4 *>(parameter)[i] = p;
    reinterpret_cast<float4 *>(first)[i] = m;
    reinterpret_cast<float4 *>(second)[i] = v;
  }
  for (int i = 4 * vectors + threadIdx.x; i < chunk.count; i += MANY_THREADS)
    update(parameter[i], first[i], second[i], grad[i], n);
}

// sums (blocks, 2): of LAMB |parameter|^2 and |u|^2, of StableAdamW g^2 / max(v', eps^2) and nothing.
__global__ void __launch_bounds__(THREADS)
    move_and_sum(const float *__restrict__ parameter, float *__restrict__ first, float *__restrict__ second,
                 const float *__restrict__ grad, float *__restrict__ sums, long long size, Numbers n, int rule,
                 const float *__restrict__ scales, const float *__restrict__ grad_scale) {
  if (!complete(n, scales, grad_scale)) return;
  float left = 0.f, right = 0.f;
  for (int item = 0; item < ITEMS; ++item) {
    const long long i = ((long long)blockIdx.x * ITEMS + item) * THREADS + threadIdx.x;
    if (i >= size) break;
    const float g = grad[i] * n.grad_scale;
    move_moments(first[i], second[i], g, n);
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
                   const float *__restrict__ sums, long long size, Numbers n, int rule,
                   const float *__restrict__ scales, const float *__restrict__ grad_scale) {
  if (!complete(n, scales, grad_scale)) return;
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
