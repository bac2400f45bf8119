// The backward kernels of attention, and its forward with dropout.
#include "backward_fp32.cuh"
#include "backward_tensor_cores.cuh"

// deltas[row] = sum(grad_output * output) of contiguous rows: a thread each, which adds in the order of fp32.cuh. Where
// one probability is 1 the gradient of its score is then exactly 0, whatever the vectors that it is multiplied with.
template <class T>
__global__ void __launch_bounds__(128)
attention_deltas(const T *grad_output, const T *output, float *deltas, long long rows, int head_dim) {
  const long long row = blockIdx.x * 128ll + threadIdx.x;
  if (row >= rows) return;
  grad_output += row * head_dim, output += row * head_dim;
  float total = 0.f;
  for (int d = 0; d < head_dim; d += VECTOR<T>) {
    float grads[VECTOR<T>], values[VECTOR<T>];
    to_floats<T>(grads, load_packed(grad_output, d, head_dim, 0.f));
    to_floats<T>(values, load_packed(output, d, head_dim, 0.f));
#pragma unroll
    for (int i = VECTOR<T> - 1; i >= 0; --i) total = fmaf(grads[i], values[i], total);
  }
  deltas[row] = total;
}

template <class T, int D> struct Engine {
  using type = OnTensorCores<T, D>;
};
template <int D> struct Engine<float, D> {
  using type = ByFma<D>;
};

// ADDED: whether there is anything beside the products of queries and keys. Left to itself, ptxas trades spills for
// blocks per multiprocessor: it is told one.
template <class T, int D, int GOAL, bool ADDED>
__global__ void __launch_bounds__(Engine<T, D>::type::S::THREADS, 1)
attention_backward(T *first, T *second, float *grad_scores, int longest_q, int longest_k, const T *grad_output,
                   const float2 *lse, const float *deltas, const T *query, const T *key, const T *value,
                   const int *cu_seqlens, const int *cu_seqlens_k, const void *attn_mask, const T *bias,
                   const T *position_bias, const int *distance_rows, const float *to_position,
                   const float *from_position, const float *segment_scores, const int *segment_ids,
                   const int *segment_ids_k, const Problem problem, const Dropout dropout) {
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  const Terms terms{to_position, from_position, segment_scores, segment_ids, segment_ids_k};
  differentiate<typename Engine<T, D>::type, GOAL, ADDED, T>(first, second, grad_scores, inputs,
                                                             {grad_output, lse, deltas}, problem, terms, dropout,
                                                             longest_q, longest_k);
}

// distances (heads, 2 span + 1): the gradients of the scores of each distance of query and key, summed over sequences,
// -span first; span = longest_q + longest_k. A block for each.
__global__ void __launch_bounds__(256)
sum_distances(const float *grad_scores, float *distances, const int *cu_seqlens, const int *cu_seqlens_k, int sequences,
              int heads, int longest_q, int longest_k) {
  const int span = longest_q + longest_k, distance = (int)blockIdx.x - span, head = blockIdx.y;
  float total = 0.f;
  for (long long place = threadIdx.x; place < (long long)sequences * longest_q; place += 256) {
    const int sequence = place / longest_q, i = place % longest_q;
    const int queries = cu_seqlens ? cu_seqlens[sequence + 1] - cu_seqlens[sequence] : longest_q;
    const int keys = cu_seqlens_k ? cu_seqlens_k[sequence + 1] - cu_seqlens_k[sequence] : longest_k;
    const int j = i + keys - queries - distance;
    if (i < queries && j >= 0 && j < keys)
      total += grad_scores[(((long long)sequence * heads + head) * longest_q + i) * longest_k + j];
  }
  total = block_reduce<Sum, 256>(total);
  if (threadIdx.x == 0) distances[head * (2ll * span + 1) + blockIdx.x] = total;
}

// table (rows, heads) = the sums of the distances that read each row; a block for a row, a thread for a head.
__global__ void __launch_bounds__(256)
sum_rows(const float *distances, const int *distance_rows, int known, float *table, int heads, int span) {
  for (int head = threadIdx.x; head < heads; head += 256) {
    float total = 0.f;
    for (int distance = -span; distance <= span; ++distance)
      if (row_of_distance(distance_rows, known, distance) == (int)blockIdx.x)
        total += distances[head * (2ll * span + 1) + distance + span];
    table[blockIdx.x * (long long)heads + head] = total;
  }
}

// The gradients of scores added up by what a query, or a key, added to them: table (heads, tokens, columns), zeros
// before. A thread owns a token and a head, and goes through the keys, or queries, of its sequence in order. Columns
// are rows of the tables; without distance_rows there are two, for keys of the same segment and of another.
__global__ void __launch_bounds__(128)
sum_scores(const float *grad_scores, float *table, const int *cu_seqlens, const int *cu_seqlens_k,
           const int *distance_rows, int known, const int *segment_ids, const int *segment_ids_k, int sequences,
           int heads, int longest_q, int longest_k, int tokens, int columns, float scale, bool of_keys) {
  const int token = blockIdx.x * 128 + threadIdx.x, head = blockIdx.y;
  if (token >= tokens) return;
  const int *offsets = of_keys ? cu_seqlens_k : cu_seqlens;
  int sequence = token / max(of_keys ? longest_k : longest_q, 1);
  if (offsets)
    for (sequence = 0; sequence + 1 < sequences && offsets[sequence + 1] <= token;) ++sequence;
  const int begin = cu_seqlens ? cu_seqlens[sequence] : sequence * longest_q;
  const int begin_k = cu_seqlens_k ? cu_seqlens_k[sequence] : sequence * longest_k;
  const int queries = cu_seqlens ? cu_seqlens[sequence + 1] - begin : longest_q;
  const int keys = cu_seqlens_k ? cu_seqlens_k[sequence + 1] - begin_k : longest_k;
  const int own = token - (of_keys ? begin_k : begin), others = of_keys ? queries : keys;
  if (own >= (of_keys ? keys : queries)) return;  // beyond the last sequence
  const float *scores = grad_scores + ((long long)sequence * heads + head) * longest_q * longest_k;
  float *sums = table + ((long long)head * tokens + token) * columns;
  for (int other = 0; other < others; ++other) {
    const int i = of_keys ? other : own, j = of_keys ? own : other;
    const int column = distance_rows ? row_of_distance(distance_rows, known, i + keys - queries - j)
                                     : segment_ids[begin + i] != segment_ids_k[begin_k + j];
    if ((unsigned)column < (unsigned)columns) sums[column] += scores[(long long)i * longest_k + j] * scale;
  }
}
