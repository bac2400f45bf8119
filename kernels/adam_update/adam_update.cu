// One step of Adam's family in place, float32, of all parameters at once. AdamW takes one pass over their arrays. The
// other rules take three launches: the moments, and two sums of each chunk; from these the rate of each parameter, one
// block per parameter; the parameters. No host waits for the sums, and their order depends only on the sizes.
//
// `scales`: the numbers that depend on the step if only the device knows it (scales_at_step), else null.
// `grad_scale`: the factor of gradients, or null; if it is inf or NaN nothing is done.
#include "many.cuh"

enum Rule { ADAMW, STABLE_ADAMW, LAMB };

struct Numbers {
  float lr, keep1, take1, keep2, take2, scale1, scale2, eps, weight_decay, grad_scale;
};

// Completes the numbers by those that only the device knows; returns false if there is nothing to do.
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

// scales[0] = 1 / (1 - beta1^step), scales[1] = (1 - beta2^step)^-1/2; one thread.
__global__ void scales_at_step(const long long *__restrict__ step, float *__restrict__ scales, double beta1,
                               double beta2) {
  scales[0] = (float)(1. / (1. - pow(beta1, (double)*step)));
  scales[1] = (float)(1. / sqrt(1. - pow(beta2, (double)*step)));
}

// ---- passes over chunks: a row of the table has the addresses of a parameter, its gradient, first and second moment ----

using Parameters = Row<4>;
enum Arrays : unsigned { PARAMETER = 1, GRAD = 2, MOMENTS = 4 | 8 };

__device__ __forceinline__ float4 load_some(const float *array, int count) {
  return make_float4(array[0], count > 1 ? array[1] : 0.f, count > 2 ? array[2] : 0.f, count > 3 ? array[3] : 0.f);
}

__device__ __forceinline__ void store_some(float *array, int count, const float4 &values) {
  array[0] = values.x;
  if (count > 1) array[1] = values.y;
  if (count > 2) array[2] = values.z;
  if (count > 3) array[3] = values.w;
}

// function(parameter, grad, first, second) for each element of a chunk, where the arrays READ are loaded and those
// WRITTEN are stored. A thread has the same elements in the same order wherever the arrays begin.
template <unsigned READ, unsigned WRITTEN, class Function>
__device__ __forceinline__ void each_element(const Chunk<4> &chunk, Function function) {
  float *arrays[4];
  bool has_vectors = true;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    arrays[k] = chunk.array<float>(k);
    has_vectors = has_vectors && is_aligned(arrays[k]);
  }
  for (int begin = 4 * threadIdx.x; begin < chunk.count; begin += 4 * MANY_THREADS) {
    const int count = min(4, chunk.count - begin);
    const bool is_vector = has_vectors && count == 4;
    float4 held[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (READ >> k & 1) {
        if (is_vector) held[k] = *reinterpret_cast<const float4 *>(arrays[k] + begin);
        else held[k] = load_some(arrays[k] + begin, count);
      }
    function(held[0].x, held[1].x, held[2].x, held[3].x);
    if (count > 1) function(held[0].y, held[1].y, held[2].y, held[3].y);
    if (count > 2) function(held[0].z, held[1].z, held[2].z, held[3].z);
    if (count > 3) function(held[0].w, held[1].w, held[2].w, held[3].w);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (WRITTEN >> k & 1) {
        if (is_vector) *reinterpret_cast<float4 *>(arrays[k] + begin) = held[k];
        else store_some(arrays[k] + begin, count, held[k]);
      }
  }
}

__global__ void __launch_bounds__(MANY_THREADS)
    adamw(const Parameters *__restrict__ rows, int row_count, Numbers n, const float *__restrict__ scales,
          const float *__restrict__ grad_scale) {
  if (!complete(n, scales, grad_scale)) return;
  const auto update = [&](float &parameter, float grad, float &first, float &second) {
    move_moments(first, second, grad * n.grad_scale, n);
    parameter -= n.lr * step_of(parameter, first, second, n);
  };
  each_element<PARAMETER | GRAD | MOMENTS, PARAMETER | MOMENTS>(Chunk<4>(rows, row_count), update);
}

// sums (chunks, 2): for LAMB |parameter|^2 and |u|^2, for StableAdamW g^2 / max(v', eps^2) and nothing.
__global__ void __launch_bounds__(MANY_THREADS)
    move_and_sum(const Parameters *__restrict__ rows, int row_count, Numbers n, const float *__restrict__ scales,
                 const float *__restrict__ grad_scale, double *__restrict__ sums, int rule) {
  if (!complete(n, scales, grad_scale)) return;
  double left = 0., right = 0.;
  const auto move = [&](float parameter, float grad, float &first, float &second) {
    const float g = grad * n.grad_scale;
    move_moments(first, second, g, n);
    if (rule == LAMB) {
      const double update = step_of(parameter, first, second, n);
      left += (double)parameter * parameter;
      right += update * update;
    } else {
      const float root = fmaxf(sqrtf(second) * n.scale2, n.eps);
      const double ratio = root > 0.f ? g / root : root;
      left += ratio * ratio;
    }
  };
  each_element<PARAMETER | GRAD | MOMENTS, MOMENTS>(Chunk<4>(rows, row_count), move);
  left = block_sum(left);
  right = block_sum(right);
  if (threadIdx.x == 0) {
    sums[2ll * blockIdx.x] = left;
    sums[2ll * blockIdx.x + 1] = right;
  }
}

// rates[row]: the rate of that row's parameter, from the sums of its chunks; one block per row.
__global__ void __launch_bounds__(MANY_THREADS)
    rates_of_rows(const Parameters *__restrict__ rows, Numbers n, const double *__restrict__ sums,
                  float *__restrict__ rates, int rule) {
  const Parameters row = rows[blockIdx.x];
  const long long chunks = (row.size + MANY_CHUNK - 1) / MANY_CHUNK;
  double left = 0., right = 0.;
  for (long long chunk = row.first_chunk + threadIdx.x; chunk < row.first_chunk + chunks; chunk += MANY_THREADS) {
    left += sums[2 * chunk];
    right += sums[2 * chunk + 1];
  }
  left = block_sum(left);
  right = block_sum(right);
  if (threadIdx.x != 0) return;
  if (rule == LAMB) rates[blockIdx.x] = n.lr * (left > 0. && right > 0. ? sqrt(left / right) : 1.);
  else rates[blockIdx.x] = n.lr / fmax(1., sqrt(left / row.size));
}

__global__ void __launch_bounds__(MANY_THREADS)
    move_parameter(const Parameters *__restrict__ rows, int row_count, Numbers n, const float *__restrict__ scales,
                   const float *__restrict__ grad_scale, const float *__restrict__ rates) {
  if (!complete(n, scales, grad_scale)) return;
  const Chunk<4> chunk(rows, row_count);
  const float rate = rates[chunk.row - rows];
  each_element<PARAMETER | MOMENTS, PARAMETER>(chunk, [&](float &parameter, float, float first, float second) {
    parameter -= rate * step_of(parameter, first, second, n);
  });
}
