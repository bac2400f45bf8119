// One step of Muon without its products, float32, for matrices of one shape at once. A row of the table has the
// addresses of a parameter, its gradient, its momentum and its direction.
//
// `grad_scale`: the factor of gradients, or null; if it is inf or NaN, parameters and momenta are unchanged, and
// directions undefined.
#include "many.cuh"

using Matrices = Row<4>;

__device__ __forceinline__ float scale_of(const float *grad_scale) { return grad_scale == nullptr ? 1.f : *grad_scale; }

// The momenta and directions; sums[chunk]: of the squares of a chunk of a direction.
__global__ void __launch_bounds__(MANY_THREADS)
    move_momentum(const Matrices *__restrict__ rows, int row_count, float kept, float taken,
                  const float *__restrict__ grad_scale, double *__restrict__ sums) {
  const float scale = scale_of(grad_scale);
  if (!(fabsf(scale) < INFINITY)) return;
  const Chunk<4> chunk(rows, row_count);
  const float *grad = chunk.array<float>(1);
  float *momentum = chunk.array<float>(2), *direction = chunk.array<float>(3);
  double total = 0.;
  for (int i = threadIdx.x; i < chunk.count; i += MANY_THREADS) {
    const float part = taken * (grad[i] * scale), moved = kept * momentum[i] + part, along = kept * moved + part;
    momentum[i] = moved;
    direction[i] = along;
    total += (double)along * along;
  }
  total = block_sum(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// directions / max(their norm, eps), one matrix after the other. Each block adds up the sums of its matrix.
__global__ void __launch_bounds__(MANY_THREADS)
    normalise(const Matrices *__restrict__ rows, int row_count, const double *__restrict__ sums, double eps,
              const float *__restrict__ directions, float *__restrict__ normalised) {
  SHARED_ARRAY(float, factor, 1);
  const Chunk<4> chunk(rows, row_count);
  const long long size = chunk.row->size, first = chunk.row->first_chunk;
  const long long chunks = (size + MANY_CHUNK - 1) / MANY_CHUNK;
  double total = 0.;
  for (long long i = threadIdx.x; i < chunks; i += MANY_THREADS) total += sums[first + i];
  total = block_sum(total);
  if (threadIdx.x == 0) factor[0] = (float)(1. / fmax(sqrt(total), eps));
  __syncthreads();
  const long long begin = (chunk.row - rows) * size + chunk.begin;
  for (int i = threadIdx.x; i < chunk.count; i += MANY_THREADS)
    normalised[begin + i] = directions[begin + i] * factor[0];
}

// parameter = kept * parameter - rate * direction
__global__ void __launch_bounds__(MANY_THREADS)
    move_matrix(const Matrices *__restrict__ rows, int row_count, float kept, float rate,
                const float *__restrict__ grad_scale) {
  if (!(fabsf(scale_of(grad_scale)) < INFINITY)) return;
  const Chunk<4> chunk(rows, row_count);
  float *parameter = chunk.array<float>(0);
  const float *direction = chunk.array<float>(3);
  for (int i = threadIdx.x; i < chunk.count; i += MANY_THREADS)
    parameter[i] = kept * parameter[i] - rate * direction[i];
}
