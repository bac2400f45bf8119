// The backward kernels of attention, and its forward with dropout.
#include "backward_fp32.cuh"
#include "backward_tensor_cores.cuh"

// deltas[row] = sum(grad_output * output) of contiguous rows: one thread per row, which adds in the order of fp32.cuh.
// If one probability is 1, the gradient of its score is then exactly 0, whatever the vectors.
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

// ADDED: whether terms are added to the products of queries and keys. The bounds ask for one block per multiprocessor:
// for more, ptxas would accept spills.
template <class T, int D, int GOAL, bool ADDED>
__global__ void __launch_bounds__(Engine<T, D>::type::S::THREADS, 1)
attention_backward(T *first, T *second, const Strides strides, float *grad_scores, float *bands, int score_rows,
                   int longest_q, int longest_k, int first_head, const T *grad_output, const float2 *lse,
                   const float *deltas, const T *query, const T *key, const T *value, const int *cu_seqlens,
                   const int *cu_seqlens_k, const void *attn_mask, const T *bias, const T *position_bias,
                   const int *distance_rows, const float *to_position, const float *from_position,
                   const float *segment_scores, const int *segment_ids,
                   const int *segment_ids_k, const Problem problem, const long long *seed_at, long long seed,
                   unsigned threshold, float factor) {
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  const Terms terms{to_position, from_position, segment_scores, segment_ids, segment_ids_k};
  differentiate<typename Engine<T, D>::type, GOAL, ADDED, T>(
      first, second, strides, {grad_scores, bands, score_rows, longest_q, longest_k}, inputs,
      {grad_output, lse, deltas}, problem, terms, {{seed_at, seed}, threshold, factor}, first_head);
}

// distances (heads, longest_q + longest_k + 1): the gradients of the scores of each distance of query and key, summed
// over the bands of all strips, -longest_q first. A strip has `height` of a tile's `rows` queries, which met `keys` at
// once. A block for DISTANCES of them: neighbouring threads read neighbouring elements.
constexpr int DISTANCES = 8;

__global__ void __launch_bounds__(256)
sum_bands(const float *bands, float *distances, const int *cu_seqlens, const int *cu_seqlens_k, const Problem problem,
          int longest_q, int longest_k, int rows, int height, int keys) {
  SHARED_ARRAY(float, room, 256);
  Inputs<float> inputs = {};
  inputs.cu_seqlens = cu_seqlens, inputs.cu_seqlens_k = cu_seqlens_k;
  const int count = longest_q + longest_k + 1, index = blockIdx.x * DISTANCES + threadIdx.x % DISTANCES;
  const int head = blockIdx.y, strips = (longest_q + height - 1) / height, tiles = (longest_q + rows - 1) / rows;
  const int size = band_size(longest_k, keys);
  float total = 0.f;
  for (int at = threadIdx.x / DISTANCES; at < problem.sequences * strips; at += 256 / DISTANCES) {
    const int sequence = at / strips, first = at % strips * height;
    const Place place = place_of(problem, inputs, sequence, head, first);
    const int across = place.keys - place.queries - (index - longest_q);  // from a query to its key
    const int last = min(first + height, place.queries) - 1;
    if (first > last || !place.keys || across < place.below || across > place.above) continue;
    if (first + across >= place.keys || last + across < 0) continue;  // no query of the strip sees a key so far away
    const int tile = cu_seqlens ? cu_seqlens[sequence] / rows + sequence : sequence * tiles;
    const long long strip = tile * (rows / height) + first / height;
    total += bands[(strip * problem.heads + head) * size + first + across + keys];
  }
  room[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= DISTANCES || index >= count) return;
  for (int other = threadIdx.x + DISTANCES; other < 256; other += DISTANCES) total += room[other];
  distances[head * (long long)count + index] = total;
}

// table (rows, heads) = the sums of the distances that read each row; a block for a row, a thread for a head.
__global__ void __launch_bounds__(256)
sum_rows(const float *distances, const int *distance_rows, int known, float *table, int heads, int longest_q,
         int longest_k) {
  for (int head = threadIdx.x; head < heads; head += 256) {
    float total = 0.f;
    for (int distance = -longest_q; distance <= longest_k; ++distance)
      if (row_of_distance(distance_rows, known, distance) == (int)blockIdx.x)
        total += distances[head * (longest_q + longest_k + 1ll) + distance + longest_q];
    table[blockIdx.x * (long long)heads + head] = total;
  }
}

// The distances from -longest_q to longest_k in the order of their rows, those of a row ascending: row r has
// listed[starts[r]] to listed[starts[r + 1] - 1]. A warp for a row, the last block for the end.
__global__ void __launch_bounds__(WARP)
list_distances(const int *distance_rows, int known, int *starts, int *listed, int longest_q, int longest_k) {
  const int row = blockIdx.x;
  int at = 0;
  for (int first = -longest_q; first <= longest_k; first += WARP) {
    const int distance = first + threadIdx.x;
    const bool is_before = distance <= longest_k && row_of_distance(distance_rows, known, distance) < row;
    at += __popc(__ballot_sync(FULL_MASK, is_before));
  }
  if (threadIdx.x == 0) starts[row] = at;
  if (row + 1 == (int)gridDim.x) return;
  for (int first = -longest_q; first <= longest_k; first += WARP) {
    const int distance = first + threadIdx.x;
    const bool is_here = distance <= longest_k && row_of_distance(distance_rows, known, distance) == row;
    const unsigned votes = __ballot_sync(FULL_MASK, is_here);
    if (is_here) listed[at + __popc(votes & ((1u << threadIdx.x) - 1))] = distance;
    at += __popc(votes);
  }
}

// A query or key: its position in its sequence, the range that it sees there, and the gradients of its scores.
struct Token {
  const float *scores;             // of the sequence's first query and key
  int own, first, end, begin_k;    // first, end: the range that it sees; begin_k: of the sequence's keys
  int position;                    // of query 0 among the keys

  __device__ __forceinline__ Token(const ScoreGradients &of, const Inputs<float> &inputs, const Problem &problem,
                                   int token, bool of_keys) {
    const int *offsets = of_keys ? inputs.cu_seqlens_k : inputs.cu_seqlens;
    int sequence = token / max(of_keys ? problem.length_k : problem.length, 1);
    if (offsets) {
      sequence = 0;
      for (int end = problem.sequences; end - sequence > 1;) {
        const int middle = (sequence + end) / 2;
        if (offsets[middle] <= token) sequence = middle;
        else end = middle;
      }
    }
    const Place place = place_of(problem, inputs, sequence, 0, 0);
    const int begin = offsets ? place.begin : sequence * problem.length, keys = min(place.keys, of.longest_k);
    begin_k = offsets ? place.begin_k : sequence * problem.length_k;
    scores = of.each_of(sequence, begin, blockIdx.y);
    own = token - (of_keys ? begin_k : begin);
    first = max(of_keys ? own - place.above : own + place.below, 0);
    end = min(of_keys ? own - place.below : own + place.above, (of_keys ? place.queries : keys) - 1) + 1;
    if (own >= (of_keys ? keys : place.queries)) end = first;  // beyond the last sequence
    position = place.keys - place.queries;
  }
};

// The gradients of scores summed by the row of their distance, times the scale: table (heads, tokens, columns).
// A warp owns a token and a head, a thread every 32nd column, whose distances it adds in order.
constexpr int TOKENS = 8;  // of a block

template <class T>
__global__ void __launch_bounds__(WARP * TOKENS)
sum_scores(float *grad_scores, T *table, const int *cu_seqlens, const int *cu_seqlens_k, const int *starts,
           const int *listed, const Problem problem, int score_rows, int longest_q, int longest_k, int tokens,
           bool of_keys) {
  const int token = blockIdx.x * TOKENS + threadIdx.y;
  if (token >= tokens) return;
  Inputs<float> inputs = {};
  inputs.cu_seqlens = cu_seqlens, inputs.cu_seqlens_k = cu_seqlens_k;
  const Token at({grad_scores, nullptr, score_rows, longest_q, longest_k}, inputs, problem, token, of_keys);
  table += ((long long)blockIdx.y * tokens + token) * problem.rows;
  for (int column = threadIdx.x; column < problem.rows; column += WARP) {
    float total = 0.f;
    for (int entry = starts[column]; entry < starts[column + 1]; ++entry) {
      const int across = listed[entry] - at.position, other = of_keys ? at.own + across : at.own - across;
      if (other < at.first || other >= at.end) continue;
      total += at.scores[of_keys ? other * (long long)longest_k + at.own : at.own * (long long)longest_k + other];
    }
    table[column] = from_float<T>(total * problem.scale);
  }
}

// The gradients of the scores of each query for keys of its segment, and of another: table (heads, tokens, 2).
__global__ void __launch_bounds__(128)
sum_segments(float *grad_scores, float *table, const int *cu_seqlens, const int *cu_seqlens_k, const int *segment_ids,
             const int *segment_ids_k, const Problem problem, int score_rows, int longest_q, int longest_k,
             int tokens) {
  const int token = blockIdx.x * 128 + threadIdx.x;
  if (token >= tokens) return;
  Inputs<float> inputs = {};
  inputs.cu_seqlens = cu_seqlens, inputs.cu_seqlens_k = cu_seqlens_k;
  const Token at({grad_scores, nullptr, score_rows, longest_q, longest_k}, inputs, problem, token, false);
  float same = 0.f, another = 0.f;
  for (int j = at.first; j < at.end; ++j) {
    const float grad = at.scores[at.own * (long long)longest_k + j];
    if (segment_ids[token] == segment_ids_k[at.begin_k + j]) same += grad;
    else another += grad;
  }
  table += 2 * ((long long)blockIdx.y * tokens + token);
  table[0] = same * problem.scale, table[1] = another * problem.scale;
}
