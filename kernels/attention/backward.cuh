// The gradients of attention by two kernels, without atomics: one owns tiles of keys and sums over the queries that see
// them, one owns tiles of queries and sums over their keys. Both compute the probabilities again from what the forward
// kept of each query, its highest score and the logarithm of the sum. Arithmetic is fp32, on plain tiles.
#include "../_cuda/philox.cuh"
#include "problem.cuh"

// TILE queries meet TILE keys; a thread holds HELD elements of a tile's gradient.
template <int D_> struct BackwardTiling {
  static constexpr int D = D_, THREADS = 256, TILE = 2048 / D, HELD = TILE * D / THREADS;
  static constexpr int PITCH = D + 1, SCORES_PITCH = TILE + 1;  // neighbouring rows lie in different banks
  static constexpr int TILE_FLOATS = TILE * PITCH, SCORES_FLOATS = TILE * SCORES_PITCH;
};

// The block's dynamic shared memory.
template <class S> struct Tiles {
  float *keys, *values, *queries, *grads, *probs, *grad_scores;

  __device__ __forceinline__ explicit Tiles(unsigned char *shared) {
    keys = reinterpret_cast<float *>(shared), values = keys + S::TILE_FLOATS, queries = values + S::TILE_FLOATS;
    grads = queries + S::TILE_FLOATS, probs = grads + S::TILE_FLOATS, grad_scores = probs + S::SCORES_FLOATS;
  }
};

// What the backward reads beside struct Inputs. grad_output lies as the forward's output does; deltas and lse are
// counted as the rows of it, and by query.
template <class T> struct BackwardInputs {
  const T *grad_output;
  const float2 *lse;
  const float *deltas;
};

// What relative positions and segments add to the products of queries and keys, null where absent; Products in
// relative_products.py. Contiguous: (heads, tokens, rows), (heads, tokens of keys, rows), (heads, tokens, 2), ids of
// the tokens.
struct Terms {
  const float *to_position, *from_position, *segment_scores;
  const int *segment_ids, *segment_ids_k;
};

// Of the probabilities: those whose bits are below the threshold are dropped, the others multiplied by factor.
struct Dropout {
  long long seed;
  unsigned threshold;
  float factor;

  // By what the probability of a key is multiplied; `row`: query number * heads + head, see philox.py.
  __device__ __forceinline__ float kept(long long row, int key) const {
    if (threshold == 0) return 1.f;
    const uint4 words = philox(key / 64 * 16 + key % 16, row, seed);
    const int word = key / 16 % 4;
    const unsigned bits = word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
    return bits >= threshold ? factor : 0.f;
  }
};

// Rows first, first + 1, .. of `array` as floats, zeros beyond `rows` and `head_dim`.
template <class S, class T>
__device__ __forceinline__ void load_floats(float *tile, const T *array, long long stride, int first, int rows,
                                            int head_dim) {
#pragma unroll 1
  for (int element = threadIdx.x; element < S::TILE * S::D; element += S::THREADS) {
    const int row = element / S::D, column = element % S::D;
    const bool there = first + row < rows && column < head_dim;
    tile[row * S::PITCH + column] = there ? to_float(array[(first + row) * stride + column]) : 0.f;
  }
}

// One sequence and head: where its arrays begin.
template <class T> struct Sequence {
  Inputs<T> inputs;
  AddedScores<T> added;
  Terms terms;
  Place place;
  const T *grad_output;
  const float2 *lse;
  const float *deltas;
  long long stride, deltas_stride, bits_row;  // of a row of grad_output, of deltas; bits_row: of query 0

  __device__ __forceinline__ Sequence(const Problem &problem, const Inputs<T> &all, const BackwardInputs<T> &backward,
                                      const Terms &given, const Place &place)
      : inputs(all), added(find_added_scores(problem, all, place)), terms(given), place(place) {
    const bool packed = all.cu_seqlens;
    const long long begin = output_begin(problem, place, packed);
    enter(inputs, problem, place);
    stride = output_stride(problem, packed), deltas_stride = packed ? problem.heads : 1;
    grad_output = backward.grad_output + begin;
    lse = backward.lse + lse_begin(problem, place);
    deltas = backward.deltas + begin / problem.head_dim;
    const long long sequence = packed ? 0 : place.sequence;
    const long long token = place.begin + sequence * problem.length;
    const long long token_k = place.begin_k + sequence * problem.length_k;
    bits_row = token * problem.heads + place.head;
    enter_terms(problem, place.head, token, token_k, packed ? 1 : problem.sequences);
  }

  __device__ __forceinline__ void enter_terms(const Problem &problem, int head, long long token, long long token_k,
                                              int batch) {
    const long long first = head * (long long)batch * problem.length + token;
    const long long first_k = head * (long long)batch * problem.length_k + token_k;
    if (terms.to_position) terms.to_position += first * problem.rows;
    if (terms.from_position) terms.from_position += first_k * problem.rows;
    if (!terms.segment_scores) return;
    terms.segment_scores += 2 * first;
    terms.segment_ids += token;
    terms.segment_ids_k += token_k;
  }

  __device__ __forceinline__ float add_terms(float score, int i, int j, const Problem &problem) const {
    if (terms.to_position || terms.from_position) {
      const int row = row_of_distance(added.distance_rows, problem.distances, i + added.position - j);
      if ((unsigned)row >= (unsigned)problem.rows) return score;
      if (terms.to_position) score += terms.to_position[i * (long long)problem.rows + row];
      if (terms.from_position) score += terms.from_position[j * (long long)problem.rows + row];
    }
    if (terms.segment_scores) score += terms.segment_scores[2 * i + (terms.segment_ids[i] != terms.segment_ids_k[j])];
    return score;
  }
};

// The probability of query i and key j of the tiles, which are those of the sequence at i_query and j_key; 0 for one
// that is not there or not seen.
template <class S, class T>
__device__ __forceinline__ float probability(const float *queries, const float *keys, const Sequence<T> &at,
                                             const Problem &problem, int i, int j, int i_query, int j_key) {
  if (i_query >= at.place.queries || j_key >= at.place.keys || at.place.hides(i_query, j_key)) return 0.f;
  const float2 lse = at.lse[i_query];
  if (lse.x == -INFINITY) return 0.f;
  float score = 0.f;
  const float *q = queries + i * S::PITCH, *k = keys + j * S::PITCH;
  for (int d = 0; d < S::D; d += 4) {  // in the order of fp32.cuh: another's rounding would tell where scores are large
#pragma unroll
    for (int n = 3; n >= 0; --n) score = fmaf(q[d + n], k[d + n], score);
  }
  score = at.add_terms(score, i_query, j_key, problem) * problem.scale;
  return expf(at.added.apply(score, i_query, j_key, problem) - lse.x - lse.y);
}

// The probabilities of TILE queries from `query` on and TILE keys from `key` on, times what dropout multiplies them by,
// and the gradients of their scores.
template <class S, class T>
__device__ __forceinline__ void differentiate_scores(const Tiles<S> &tiles, const Sequence<T> &at,
                                                     const Problem &problem, const Dropout &dropout, int query,
                                                     int key) {
#pragma unroll 1
  for (int element = threadIdx.x; element < S::TILE * S::TILE; element += S::THREADS) {
    const int i = element / S::TILE, j = element % S::TILE, i_query = query + i, j_key = key + j;
    const float p = probability<S>(tiles.queries, tiles.keys, at, problem, i, j, i_query, j_key);
    float kept = 0.f, grad_score = 0.f;
    if (p != 0.f) {  // also where it is NaN
      float grad = 0.f;
#pragma unroll 4
      for (int d = 0; d < S::D; ++d)
        grad = fmaf(tiles.grads[i * S::PITCH + d], tiles.values[j * S::PITCH + d], grad);
      kept = dropout.kept(at.bits_row + i_query * (long long)problem.heads, j_key);
      grad_score = p * (grad * kept - at.deltas[i_query * at.deltas_stride]);
    }
    tiles.probs[i * S::SCORES_PITCH + j] = p * kept;
    tiles.grad_scores[i * S::SCORES_PITCH + j] = grad_score;
  }
}

// The block's tile of keys within its sequence.
template <class T>
__device__ __forceinline__ int find_keys(int &sequence, const Problem &problem, const Inputs<T> &inputs, int rows) {
  const int tile = blockIdx.x;
  if (inputs.cu_seqlens_k) {
    sequence = find_sequence(inputs.cu_seqlens_k, problem.sequences, tile, rows);
    return (tile - inputs.cu_seqlens_k[sequence] / rows - sequence) * rows;
  }
  const int tiles = (problem.length_k + rows - 1) / rows;
  sequence = tile / tiles;
  return tile % tiles * rows;
}

// Gradients of keys and values, (tokens, heads of keys, head_dim) when packed, else (batch, heads, length, head_dim).
template <class S, class T>
__device__ __forceinline__ void differentiate_keys(T *grad_key, T *grad_value, const Inputs<T> &inputs,
                                                   const BackwardInputs<T> &backward, const Problem &problem,
                                                   const Terms &terms, const Dropout &dropout) {
  DYNAMIC_SHARED(shared);
  const Tiles<S> tiles(shared);
  int sequence;
  const int first = find_keys(sequence, problem, inputs, S::TILE), head_k = blockIdx.y;
  const Place common = place_of(problem, inputs, sequence, head_k * problem.sharing, 0);
  if (first >= common.keys) return;
  const int column = threadIdx.x % S::D, row = threadIdx.x / S::D;
  constexpr int STEP = S::THREADS / S::D;
  float of_keys[S::HELD] = {}, of_values[S::HELD] = {};
  // Query i sees the keys from i + below to i + above.
  const int begin = max(first - common.above, 0) / S::TILE * S::TILE;
  const int end = min(common.queries, first + S::TILE - common.below);
#pragma unroll 1
  for (int head = head_k * problem.sharing; head < (head_k + 1) * problem.sharing; ++head) {
    const Sequence<T> at(problem, inputs, backward, terms, place_of(problem, inputs, sequence, head, 0));
    __syncthreads();  // everybody has left the tiles
    load_floats<S>(tiles.keys, at.inputs.key, problem.key[2], first, common.keys, problem.head_dim);
    load_floats<S>(tiles.values, at.inputs.value, problem.value[2], first, common.keys, problem.head_dim);
#pragma unroll 1
    for (int query = begin; query < end; query += S::TILE) {
      __syncthreads();
      load_floats<S>(tiles.queries, at.inputs.query, problem.query[2], query, common.queries, problem.head_dim);
      load_floats<S>(tiles.grads, at.grad_output, at.stride, query, common.queries, problem.head_dim);
      __syncthreads();
      differentiate_scores<S>(tiles, at, problem, dropout, query, first);
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < S::TILE; ++i) {
        const float q = tiles.queries[i * S::PITCH + column], g = tiles.grads[i * S::PITCH + column];
#pragma unroll
        for (int n = 0; n < S::HELD; ++n) {
          const int score = i * S::SCORES_PITCH + row + n * STEP;
          of_keys[n] = fmaf(tiles.grad_scores[score], q, of_keys[n]);
          of_values[n] = fmaf(tiles.probs[score], g, of_values[n]);
        }
      }
    }
  }
  if (column >= problem.head_dim) return;
  const int heads = gridDim.y;
  const bool packed = inputs.cu_seqlens;
  const long long rows = packed ? common.begin_k * heads + head_k
                                : ((long long)sequence * heads + head_k) * problem.length_k;
#pragma unroll
  for (int n = 0; n < S::HELD; ++n) {
    const int key = first + row + n * STEP;
    if (key >= common.keys) continue;
    const long long place = (rows + key * (long long)(packed ? heads : 1)) * problem.head_dim + column;
    grad_key[place] = from_float<T>(of_keys[n] * problem.scale);
    grad_value[place] = from_float<T>(of_values[n]);
  }
}

// Gradients of the queries, which lie as the output does, and, where asked for, of the scores: (sequences, heads,
// longest_q, longest_k), of which only what a query sees is written.
template <class S, class T>
__device__ __forceinline__ void differentiate_queries(T *grad_query, float *scores, const Inputs<T> &inputs,
                                                      const BackwardInputs<T> &backward, const Problem &problem,
                                                      const Terms &terms, const Dropout &dropout, int longest_q,
                                                      int longest_k) {
  DYNAMIC_SHARED(shared);
  const Tiles<S> tiles(shared);
  const Place place = find_place(problem, inputs, S::TILE);
  if (place.first >= place.queries) return;
  const Sequence<T> at(problem, inputs, backward, terms, place);
  const int column = threadIdx.x % S::D, row = threadIdx.x / S::D;
  constexpr int STEP = S::THREADS / S::D;
  float held[S::HELD] = {};
  load_floats<S>(tiles.queries, at.inputs.query, problem.query[2], place.first, place.queries, problem.head_dim);
  load_floats<S>(tiles.grads, at.grad_output, at.stride, place.first, place.queries, problem.head_dim);
  if (scores) scores += ((long long)place.sequence * problem.heads + place.head) * longest_q * longest_k;
  const int end = place.end_key(S::TILE);
#pragma unroll 1
  for (int key = place.first_key(S::TILE); key < end; key += S::TILE) {
    __syncthreads();  // everybody has left the tiles
    load_floats<S>(tiles.keys, at.inputs.key, problem.key[2], key, place.keys, problem.head_dim);
    load_floats<S>(tiles.values, at.inputs.value, problem.value[2], key, place.keys, problem.head_dim);
    __syncthreads();
    differentiate_scores<S>(tiles, at, problem, dropout, place.first, key);
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < S::TILE; ++j) {
      const float k = tiles.keys[j * S::PITCH + column];
#pragma unroll
      for (int n = 0; n < S::HELD; ++n)
        held[n] = fmaf(tiles.grad_scores[(row + n * STEP) * S::SCORES_PITCH + j], k, held[n]);
    }
    if (!scores) continue;
#pragma unroll 1
    for (int element = threadIdx.x; element < S::TILE * S::TILE; element += S::THREADS) {
      const int i = element / S::TILE, j = element % S::TILE;
      if (place.first + i < place.queries && key + j < place.keys)
        scores[(place.first + i) * (long long)longest_k + key + j] = tiles.grad_scores[i * S::SCORES_PITCH + j];
    }
  }
  if (column >= problem.head_dim) return;
  grad_query += output_begin(problem, place, inputs.cu_seqlens);
#pragma unroll
  for (int n = 0; n < S::HELD; ++n) {
    const int query = place.first + row + n * STEP;
    if (query < place.queries) grad_query[query * at.stride + column] = from_float<T>(held[n] * problem.scale);
  }
}

// Outputs once more, of probabilities that dropout has thinned: lse is the forward's.
template <class S, class T>
__device__ __forceinline__ void drop_and_multiply(T *output, const float2 *lse, const Inputs<T> &inputs,
                                                  const Problem &problem, const Terms &terms,
                                                  const Dropout &dropout) {
  DYNAMIC_SHARED(shared);
  const Tiles<S> tiles(shared);
  const Place place = find_place(problem, inputs, S::TILE);
  if (place.first >= place.queries) return;
  const Sequence<T> at(problem, inputs, {nullptr, lse, nullptr}, terms, place);
  const int column = threadIdx.x % S::D, row = threadIdx.x / S::D;
  constexpr int STEP = S::THREADS / S::D;
  float held[S::HELD] = {};
  load_floats<S>(tiles.queries, at.inputs.query, problem.query[2], place.first, place.queries, problem.head_dim);
  const int end = place.end_key(S::TILE);
#pragma unroll 1
  for (int key = place.first_key(S::TILE); key < end; key += S::TILE) {
    __syncthreads();  // everybody has left the tiles
    load_floats<S>(tiles.keys, at.inputs.key, problem.key[2], key, place.keys, problem.head_dim);
    load_floats<S>(tiles.values, at.inputs.value, problem.value[2], key, place.keys, problem.head_dim);
    __syncthreads();
#pragma unroll 1
    for (int element = threadIdx.x; element < S::TILE * S::TILE; element += S::THREADS) {
      const int i = element / S::TILE, j = element % S::TILE;
      const int i_query = place.first + i;
      const float p = probability<S>(tiles.queries, tiles.keys, at, problem, i, j, i_query, key + j);
      const float kept = dropout.kept(at.bits_row + i_query * (long long)problem.heads, key + j);
      tiles.probs[i * S::SCORES_PITCH + j] = p * kept;
    }
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < S::TILE; ++j) {
      const float v = tiles.values[j * S::PITCH + column];
#pragma unroll
      for (int n = 0; n < S::HELD; ++n) held[n] = fmaf(tiles.probs[(row + n * STEP) * S::SCORES_PITCH + j], v, held[n]);
    }
  }
  if (column >= problem.head_dim) return;
  output += output_begin(problem, place, inputs.cu_seqlens);
#pragma unroll
  for (int n = 0; n < S::HELD; ++n) {
    const int query = place.first + row + n * STEP;
    if (query < place.queries) output[query * at.stride + column] = from_float<T>(held[n]);
  }
}
