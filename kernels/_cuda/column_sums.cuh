// Sums down the columns of rows, without atomics: a block sums a chunk of rows in a fixed order into one row
// of partial sums, and a second launch of one chunk sums those. The order depends only on the number of rows.
#include "common.cuh"

constexpr int SUM_COLUMNS = 32, SUM_LANES = 8, SUM_CHUNK = 128;  // rows of a chunk; as in rows.py

// Adds up one column over the block's threads; the first of them gets the sum. `room`: SUM_LANES * SUM_COLUMNS.
__device__ __forceinline__ float sum_lanes(float value, float *room) {
  room[threadIdx.y * SUM_COLUMNS + threadIdx.x] = value;
  __syncthreads();
  float total = 0.f;
  if (threadIdx.y == 0)
    for (int lane = 0; lane < SUM_LANES; ++lane) total += room[lane * SUM_COLUMNS + threadIdx.x];
  __syncthreads();
  return total;
}

// output (chunks, width): the sums of `chunk` rows each.
template <class From, class To>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_LANES)
    sum_columns(const From *__restrict__ input, To *__restrict__ output, long long stride, long long rows, int width,
                long long chunk) {
  SHARED_ARRAY(float, room, SUM_LANES * SUM_COLUMNS);
  const int column = blockIdx.y * SUM_COLUMNS + threadIdx.x;
  const long long first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
  float total = 0.f;
  if (column < width)
    for (long long row = first + threadIdx.y; row < last; row += SUM_LANES)
      total += to_float(input[row * stride + column]);
  total = sum_lanes(total, room);
  if (threadIdx.y == 0 && column < width) output[blockIdx.x * (long long)width + column] = from_float<To>(total);
}
