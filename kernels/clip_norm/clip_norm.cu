// The joint norm of many arrays, in float64: squares of float32 numbers neither overflow nor vanish there.
#include "common.cuh"
#include "many.cuh"

// sums[chunk]: of the squares of a chunk of an array.
template <class T>
__global__ void __launch_bounds__(MANY_THREADS)
    sum_squares(const Row<1> *__restrict__ rows, int row_count, double *__restrict__ sums) {
  const Chunk<1> chunk(rows, row_count);
  const T *array = chunk.array<T>(0);
  double total = 0.;
  for (int begin = VECTOR<T> * threadIdx.x; begin < chunk.count; begin += VECTOR<T> * MANY_THREADS) {
    float values[VECTOR<T>];
    to_floats<T>(values, load_packed(array, begin, chunk.count, 0.f));
#pragma unroll
    for (int k = 0; k < VECTOR<T>; ++k) total += (double)values[k] * values[k];
  }
  total = block_sum(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// norm[0]: the root of the sum of all; one block.
__global__ void __launch_bounds__(MANY_THREADS)
    root_of_sum(const double *__restrict__ sums, double *__restrict__ norm, int count) {
  double total = 0.;
  for (int i = threadIdx.x; i < count; i += MANY_THREADS) total += sums[i];
  total = block_sum(total);
  if (threadIdx.x == 0) norm[0] = sqrt(total);
}
