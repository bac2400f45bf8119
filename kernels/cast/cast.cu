// Many arrays in float32 rounded into arrays of T at once.
#include "common.cuh"
#include "many.cuh"

// A row of the table has the addresses of an array and of its output.
template <class T>
__global__ void __launch_bounds__(MANY_THREADS) cast(const Row<2> *__restrict__ rows, int row_count) {
  const Chunk<2> chunk(rows, row_count);
  const float *array = chunk.array<float>(0);
  T *output = chunk.array<T>(1);
  for (int begin = VECTOR<T> * threadIdx.x; begin < chunk.count; begin += VECTOR<T> * MANY_THREADS) {
    float values[VECTOR<T>];
#pragma unroll
    for (int half = 0; half < VECTOR<T>; half += VECTOR<float>) {
      float some[VECTOR<float>];
      to_floats<float>(some, load_packed(array, begin + half, chunk.count, 0.f));
#pragma unroll
      for (int k = 0; k < VECTOR<float>; ++k) values[half + k] = some[k];
    }
    store_vector(output, begin, chunk.count, values);
  }
}
