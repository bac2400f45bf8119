// Late interaction. A block has a document and MAXSIM_TILE query tokens: it multiplies them with as many of the
// document's tokens at a time, in float32, and each thread keeps the maxima of its four rows and one column.
#include "common.cuh"

constexpr int MAXSIM_TILE = 32, MAXSIM_ROWS = 8, MAXSIM_OF_THREAD = MAXSIM_TILE / MAXSIM_ROWS;
constexpr int MAXSIM_STRIDE = MAXSIM_TILE + 1;  // of a row in shared memory: no two rows of a column in one bank

// The higher of two products and its row; NaN is higher than all, and of equal products the first row wins.
struct Match {
  float value;
  int row;

  __device__ __forceinline__ void take(float other, int at) {
    const bool is_nan = value != value, other_is_nan = other != other;
    if (is_nan ? (other_is_nan && at < row) : (other_is_nan || other > value || (other == value && at < row))) {
      value = other;
      row = at;
    }
  }
};

// A tile of rows of an array, (MAXSIM_TILE, MAXSIM_TILE), zeros beyond `rows` and `dim`.
template <class T>
__device__ __forceinline__ void maxsim_load(float *tile, const T *array, int rows, int first, int dim) {
  const int column = first + threadIdx.x;
  for (int row = threadIdx.y; row < MAXSIM_TILE; row += MAXSIM_ROWS)
    tile[row * MAXSIM_STRIDE + threadIdx.x] =
        row < rows && column < dim ? to_float(array[row * (long long)dim + column]) : 0.f;
}

template <class T>
__global__ void __launch_bounds__(MAXSIM_TILE * MAXSIM_ROWS)
    maxsim_peaks(const T *__restrict__ query, const T *__restrict__ document, const int *__restrict__ offsets,
                 float *__restrict__ peaks, int *__restrict__ best, int query_tokens, int tokens, int dim) {
  SHARED_ARRAY(float, left, MAXSIM_TILE * MAXSIM_STRIDE);
  SHARED_ARRAY(float, right, MAXSIM_TILE * MAXSIM_STRIDE);
  const int start = min(max(offsets[blockIdx.x], 0), tokens);  // they are unchecked
  const int stop = min(max(offsets[blockIdx.x + 1], start), tokens), begin = blockIdx.y * MAXSIM_TILE;
  Match matches[MAXSIM_OF_THREAD];
  for (int i = 0; i < MAXSIM_OF_THREAD; ++i) matches[i] = {-INFINITY, stop};
  for (int first = start; first < stop; first += MAXSIM_TILE) {
    float sums[MAXSIM_OF_THREAD] = {};
    for (int depth = 0; depth < dim; depth += MAXSIM_TILE) {
      maxsim_load(left, query + begin * (long long)dim, query_tokens - begin, depth, dim);
      maxsim_load(right, document + first * (long long)dim, stop - first, depth, dim);
      __syncthreads();
      for (int k = 0; k < MAXSIM_TILE; ++k)
        for (int i = 0; i < MAXSIM_OF_THREAD; ++i)
          sums[i] = fmaf(left[(threadIdx.y + i * MAXSIM_ROWS) * MAXSIM_STRIDE + k],
                         right[threadIdx.x * MAXSIM_STRIDE + k], sums[i]);
      __syncthreads();
    }
    if (first + (int)threadIdx.x < stop)
      for (int i = 0; i < MAXSIM_OF_THREAD; ++i) matches[i].take(sums[i], first + threadIdx.x);
  }
  for (int i = 0; i < MAXSIM_OF_THREAD; ++i) {
    for (int offset = MAXSIM_TILE / 2; offset; offset /= 2) {
      const float value = __shfl_xor_sync(FULL_MASK, matches[i].value, offset);
      const int row = __shfl_xor_sync(FULL_MASK, matches[i].row, offset);
      matches[i].take(value, row);
    }
    const int token = begin + threadIdx.y + i * MAXSIM_ROWS;
    if (threadIdx.x == 0 && token < query_tokens) {
      const long long place = blockIdx.x * (long long)query_tokens + token;
      peaks[place] = start < stop ? matches[i].value : 0.f;
      best[place] = start < stop ? matches[i].row : -1;
    }
  }
}

// A thread sums the maxima of a query's tokens for a document.
template <class T>
__global__ void maxsim_sums(const float *__restrict__ peaks, const int *__restrict__ offsets, T *__restrict__ scores,
                            int queries, int documents, int query_tokens) {
  const int document = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y;
  if (document >= documents) return;
  const int start = min(max(offsets[query], 0), query_tokens);
  const int stop = min(max(offsets[query + 1], start), query_tokens);
  float total = 0.f;
  for (int token = start; token < stop; ++token) total += peaks[document * (long long)query_tokens + token];
  scores[query * (long long)documents + document] = from_float<T>(total);
}

// A block has a query token: its gradient sums the best matches of all documents.
template <class T>
__global__ void maxsim_query_backward(const T *__restrict__ grad, const T *__restrict__ document,
                                      const int *__restrict__ queries, const int *__restrict__ best,
                                      T *__restrict__ grad_query, int documents, int query_tokens, int dim) {
  const int token = blockIdx.x, query = queries[token];
  for (int column = threadIdx.x; column < dim; column += blockDim.x) {
    float total = 0.f;
    for (int number = 0; number < documents; ++number) {
      const int row = best[number * (long long)query_tokens + token];
      if (row >= 0)
        total = fmaf(to_float(grad[query * (long long)documents + number]),
                     to_float(document[row * (long long)dim + column]), total);
    }
    grad_query[token * (long long)dim + column] = from_float<T>(total);
  }
}

// A block has a token of a document: its gradient sums the query tokens whose best match it is.
template <class T>
__global__ void maxsim_document_backward(const T *__restrict__ grad, const T *__restrict__ query,
                                         const int *__restrict__ queries, const int *__restrict__ best,
                                         const int *__restrict__ numbers, T *__restrict__ grad_document,
                                         int documents, int query_tokens, int dim) {
  const int row = blockIdx.x, number = numbers[row];
  for (int column = threadIdx.x; column < dim; column += blockDim.x) {
    float total = 0.f;
    for (int token = 0; token < query_tokens; ++token)
      if (best[number * (long long)query_tokens + token] == row)
        total = fmaf(to_float(grad[queries[token] * (long long)documents + number]),
                     to_float(query[token * (long long)dim + column]), total);
    grad_document[row * (long long)dim + column] = from_float<T>(total);
  }
}
