// The epilogue of the matrix product, in fp32 before the only rounding: output = activation(product + bias) + residual.
#include "activations.cuh"
#include "common.cuh"

// values[i] += array[begin + i] if that is inside
template <class T>
__device__ __forceinline__ void add(float (&values)[VECTOR<T>], const T *array, int begin, int count) {
  float addends[VECTOR<T>];
  to_floats<T>(addends, load_packed(array, begin, count, 0.f));
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) values[i] += addends[i];
}

template <class T> struct Epilogue {
  T *output;          // (rows, columns)
  const T *bias;      // (columns,) or null
  const T *residual;  // (rows, columns) or null
  long long output_stride, residual_stride;
  int rows, columns, activation;

  // Finishes one 16-byte vector of outputs, from column `column` of row `row`, and writes those inside the matrix.
  __device__ __forceinline__ void store(float (&values)[VECTOR<T>], int row, int column) const {
    if (row >= rows || column >= columns) return;
    if (bias) add(values, bias, column, columns);
    activate<T>(values, activation);
    if (residual) add(values, residual + row * residual_stride, column, columns);
    store_vector(output + row * output_stride, column, columns, values);
  }
};
