// The gradients of attention, without atomics. The probabilities are computed again from the highest score and the
// logarithm of the sum that the forward kept for each query.
//
// One loop serves every goal. A block keeps its own two tiles and reads the others' in pairs:
//
//                     own                 others              first sum          second sum
//   keys and values   key, value          query, grad_output  grad_key = dS^T Q  grad_value = P^T dO
//   queries           query, grad_output  key, value          grad_query = dS K  output = P V, after dropout
//
// where P are the probabilities and dS = P (dO V^T - delta) the gradients of the scores, with a row for each row that
// the block owns. An engine multiplies the tiles: backward_tensor_cores.cuh, backward_fp32.cuh.
#include "philox.cuh"
#include "problem.cuh"

// The strides of the arrays that the sums are written to: batch, head, token; STRIDES in backward.py.
struct Strides {
  long long first[3], second[3];
};

enum Goal { QUERIES, OUTPUT, KEYS_AND_VALUES, KEYS, VALUES };  // the last two are used if registers hold only one sum

// The backward's inputs in addition to struct Inputs. grad_output has the layout of the forward's output; deltas are
// counted like its rows, lse by query.
template <class T> struct BackwardInputs {
  const T *grad_output;
  const float2 *lse;
  const float *deltas;
};

// The terms that relative positions and segments add to the products of queries and keys, null where absent; Products
// in relative.py. Contiguous: (heads, tokens, rows), (heads, tokens of keys, rows), (heads, tokens, 2), ids of the
// tokens. The heads are those of the launch.
struct Terms {
  const float *to_position, *from_position, *segment_scores;
  const int *segment_ids, *segment_ids_k;
};

// Dropout of the probabilities: those with bits below the threshold are dropped, the others multiplied by factor.
struct Dropout {
  Seed seed;
  unsigned threshold;
  float factor;

  // A bit for each of the keys 64 block + residue + {0, 16, 32, 48}: whether it is kept; `row`: query number * heads +
  // head, see philox.py; `key`: the seed.
  __device__ __forceinline__ unsigned kept(long long row, int block, int residue, unsigned long long key) const {
    const uint4 words = philox(block * 16 + residue, row, key);
    return (words.x >= threshold) | (words.y >= threshold) << 1 | (words.z >= threshold) << 2 |
           (words.w >= threshold) << 3;
  }
};

// Where the arrays of one sequence and head begin.
template <class T> struct Sequence {
  Inputs<T> inputs;
  AddedScores added;
  Terms terms;
  Place place;
  const T *grad_output;
  const float2 *lse;
  const float *deltas;
  long long deltas_stride, bits_row;  // of a query; of query 0

  __device__ __forceinline__ Sequence(const Problem &problem, const Inputs<T> &all, const BackwardInputs<T> &backward,
                                      const Terms &given, const Place &place, int head_of_launch)
      : inputs(all), added(find_added_scores(problem, place)), terms(given), place(place) {
    const bool packed = all.cu_seqlens;
    enter(inputs, problem, place);
    grad_output = begin_of(backward.grad_output, problem.grad_output, place.batch, place.head, place.begin);
    lse = backward.lse + lse_begin(problem, place);
    deltas_stride = packed ? problem.heads : 1;
    deltas = backward.deltas ? backward.deltas + output_row(problem, place, packed) : nullptr;
    const long long sequence = packed ? 0 : place.sequence;
    const long long token = place.begin + sequence * problem.length;
    const long long token_k = place.begin_k + sequence * problem.length_k;
    bits_row = token * problem.heads + place.head;
    enter_terms(problem, head_of_launch, token, token_k, packed ? 1 : problem.sequences);
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

  // The state of query i for its probabilities: its peak, the logarithm of the sum in base 2, and delta. A query
  // without visible keys, or beyond the sequence, has the peak +inf: its probabilities are 0.
  __device__ __forceinline__ float4 state(int i) const {
    if (i >= place.queries) return make_float4(INFINITY, 0.f, 0.f, 0.f);
    const float2 kept = lse[i];
    const float peak = kept.x == -INFINITY ? INFINITY : kept.x;
    return make_float4(peak, kept.y * LOG2_E, deltas ? deltas[i * deltas_stride] : 0.f, 0.f);
  }

  // The score of query i and key j, both within the sequence, from the product of their vectors.
  __device__ __forceinline__ float score(float product, int i, int j, const Problem &problem) const {
    return added.apply(add_terms(product, i, j, problem) * problem.scale, i, j, problem, inputs);
  }

  __device__ __forceinline__ float add_terms(float score, int i, int j, const Problem &problem) const {
    if (terms.to_position || terms.from_position) {
      const int row = row_of_distance(inputs.distance_rows, problem.distances, i + added.position - j);
      const bool known = (unsigned)row < (unsigned)problem.rows;
      if (known && terms.to_position) score += terms.to_position[i * (long long)problem.rows + row];
      if (known && terms.from_position) score += terms.from_position[j * (long long)problem.rows + row];
    }
    if (terms.segment_scores) score += terms.segment_scores[2 * i + (terms.segment_ids[i] != terms.segment_ids_k[j])];
    return score;
  }
};


// The rows that a block owns and those of the other side, within their sequence: its own rows see the others from
// `below` to `above`, relative to their position.
struct Sight {
  int first, own, others, below, above;

  __device__ __forceinline__ bool sees(int row, int other) const {
    return other < others && other >= row + below && other <= row + above;
  }
  __device__ __forceinline__ bool sees_all(int row, int rows, int other, int count) const {
    return other + count <= others && other >= row + rows - 1 + below && other + count - 1 <= row + above;
  }
  __device__ __forceinline__ bool sees_none(int row, int rows, int other, int count) const {
    return row >= own || other + count <= row + below || other > row + rows - 1 + above;
  }
};

// Where the goal QUERIES writes gradients of scores; null if they are not needed.
//
// each (heads of the launch, rows, longest_k): only keys that a query sees are guaranteed to be written. A sequence has
// longest_q rows or, if that is 0, one for each of its queries.
// bands (tiles, strips of a tile, heads, band_size): a strip's sums along its diagonals: of keys j and queries i at
// j - i + KEYS, the strip's first query being 0. Only diagonals with a key that a query sees are surely written.
struct ScoreGradients {
  float *each, *bands;
  int rows, longest_q, longest_k;

  // The gradients of a sequence, whose first query is `token` among all tokens, and of a head of the launch.
  __device__ __forceinline__ float *each_of(int sequence, long long token, int head) const {
    return each + (head * (long long)rows + (longest_q ? sequence * (long long)longest_q : token)) * longest_k;
  }
};

__device__ __forceinline__ int band_size(int longest_k, int keys) {
  return (longest_k + keys - 1) / keys * keys + keys;
}

// One walk of a block.
template <class E, int GOAL, bool ADDED, class T> struct Walk {
  using S = typename E::S;
  using Scores = typename E::Scores;
  static constexpr bool BY_KEYS = GOAL >= KEYS_AND_VALUES;
  static constexpr bool FIRST = GOAL != OUTPUT && GOAL != VALUES, SECOND = GOAL != QUERIES && GOAL != KEYS;
  static constexpr int OWN = S::ROWS * E::ROW, OTHER = S::KEYS * E::ROW;
  static constexpr int STATES = BY_KEYS ? E::STAGES * S::KEYS : S::ROWS;
  // All threads together draw dropout's bits, for the queries of a tile and 64 keys, into two alternating buffers: half
  // a byte for a query and the keys of a residue.
  static constexpr int QUERIES_AT_ONCE = BY_KEYS ? S::KEYS : S::ROWS, KEPT = QUERIES_AT_ONCE * 8;
  static constexpr int UNIT = BY_KEYS ? S::KEYS : 64;  // of the others, covered by one buffer
  const Inputs<T> &inputs;
  const BackwardInputs<T> &backward;
  const Problem &problem;
  const Terms &terms;
  const Dropout &dropout;
  const ScoreGradients to;  // of the block's sequence and head, and the thread's strip
  E engine;
  typename E::Sums first = {}, second = {};
  float begun = 0.f;  // the sum of a diagonal that leaves the last tile sideways
  int band_end = -1;  // where the band continues with that sum

  // The sums over the others that this head's rows see. `states`: of the queries, see Sequence.
  __device__ __forceinline__ void meet(const Sequence<T> &at, const Sight &sight, T *own, float4 *states,
                                       unsigned char *kept, bool begins) {
    T *others = own + 2 * OWN;
    int stage = 0;
    auto fetch = [&](int other, int to) {
      T *tile = others + to * 2 * OTHER;
      if constexpr (BY_KEYS) {
        load_rows<S, S::KEYS>(tile, at.inputs.query, problem.query, other, sight.others, problem.head_dim);
        load_rows<S, S::KEYS>(tile + OTHER, at.grad_output, problem.grad_output, other, sight.others, problem.head_dim);
      } else {
        load_rows<S, S::KEYS>(tile, at.inputs.key, problem.key, other, sight.others, problem.head_dim);
        load_rows<S, S::KEYS>(tile + OTHER, at.inputs.value, problem.value, other, sight.others, problem.head_dim);
      }
      cp_async_commit();
    };
    const int begin = max(sight.first + sight.below, 0) / S::KEYS * S::KEYS;
    const int end = min(sight.others, min(sight.first + S::ROWS, sight.own) + sight.above);
    const bool has_state = BY_KEYS && threadIdx.x < S::KEYS;
    if (!BY_KEYS && threadIdx.x < S::ROWS) states[threadIdx.x] = at.state(sight.first + threadIdx.x);
    if (begin < end) fetch(begin, 0);
    if (begin < end && has_state) states[threadIdx.x] = at.state(begin + threadIdx.x);
    if (begin < end && dropout.threshold) draw(at, sight, begin, kept);
#pragma unroll 1
    for (int other = begin; other < end; other += S::KEYS) {
      cp_async_wait<0>();
      __syncthreads();  // the tiles have arrived; all threads are done with the previous ones
      if (begins) engine.begin(own, own + OWN), begins = false;
      const bool goes_on = other + S::KEYS < end;
      const int next = E::STAGES - 1 - stage;
      float4 next_state;
      if (E::STAGES == 2 && goes_on) fetch(other + S::KEYS, next);
      if (goes_on && has_state) next_state = at.state(other + S::KEYS + threadIdx.x);
      const int row = sight.first + E::first_row();
      if (!sight.sees_none(row, E::HEIGHT, other, S::KEYS))
        add(at, sight, own, others + stage * 2 * OTHER, BY_KEYS ? states + stage * S::KEYS : states,
            kept + other / UNIT % 2 * KEPT, other);
      if (dropout.threshold && goes_on && (other + S::KEYS) / UNIT != other / UNIT)
        draw(at, sight, other + S::KEYS, kept);
      if (E::STAGES == 1) __syncthreads();  // all threads are done with the tiles
      if (E::STAGES == 1 && goes_on) fetch(other + S::KEYS, 0);
      if (goes_on && has_state) states[next * S::KEYS + threadIdx.x] = next_state;
      stage = next;
    }
  }

  // One tile of the others, from number `other` on.
  __device__ __forceinline__ void add(const Sequence<T> &at, const Sight &sight, T *own, T *tile, const float4 *states,
                                      const unsigned char *drawn, int other) {
    Scores scores, grads;
    engine.template multiply<0>(scores, own, tile);
    if constexpr (FIRST) engine.template multiply<1>(grads, own + OWN, tile + OTHER);
    if constexpr (ADDED) add_scores(scores, at, sight, other);
    const unsigned kept = dropout.threshold ? read_drawn(drawn, sight, other) : ~0u;
    if (FIRST && dropout.threshold) drop(grads, kept);
    const float unit = ADDED ? 1.f : problem.scale;
#pragma unroll
    for (int i = 0; i < E::COUNT; ++i) {
      const float4 state = states[BY_KEYS ? E::column(i / E::WIDTH, i) : E::row(i / E::WIDTH, i)];
      float &score = scores[i / E::WIDTH][i % E::WIDTH];
      // The peak is subtracted before the logarithm: with scores in the thousands their sum would lose digits.
      score = exp2f(fmaf(fmaf(score, unit, -state.x), LOG2_E, -state.y));
      if constexpr (FIRST) grads[i / E::WIDTH][i % E::WIDTH] = score * (grads[i / E::WIDTH][i % E::WIDTH] - state.z);
    }
    if (!sight.sees_all(sight.first + E::first_row(), E::HEIGHT, other, S::KEYS))
#pragma unroll
      for (int i = 0; i < E::COUNT; ++i)
        if (!sight.sees(sight.first + E::row(i / E::WIDTH, i), other + E::column(i / E::WIDTH, i))) {
          scores[i / E::WIDTH][i % E::WIDTH] = 0.f;  // whatever the state of a query that does not see the key
          if constexpr (FIRST) grads[i / E::WIDTH][i % E::WIDTH] = 0.f;
        }
    if (GOAL == QUERIES && ADDED && to.each) write(grads, sight, other);
    if constexpr (SECOND) {
      if (dropout.threshold) drop(scores, kept);
      engine.accumulate(second, scores, tile + OTHER);
    }
    if constexpr (FIRST) engine.accumulate(first, grads, tile);
    if constexpr (GOAL == QUERIES && ADDED)
      if (to.bands && E::owns_strip()) add_diagonals(engine.lay(grads), sight, other);
  }

  // Adds a tile's scores, rows of the strip, along the diagonals. A thread owns one of them modulo KEYS: a diagonal
  // that leaves the tile sideways continues in the next tile.
  __device__ __forceinline__ void add_diagonals(const float *rows, const Sight &sight, int other) {
    const int diagonal = E::member(), count = sight.own - sight.first - E::first_row();
    if (diagonal >= S::KEYS) return;
    float ended = begun;
    begun = 0.f;
#pragma unroll 8
    for (int row = 0; row < E::HEIGHT; ++row) {
      const int column = diagonal + row;
      const float grad = row < count ? rows[row * E::STRIP_PITCH + column % S::KEYS] : 0.f;
      if (column < S::KEYS) begun += grad;
      else ended += grad;
    }
    to.bands[other + diagonal] = ended;
    band_end = other + S::KEYS + diagonal;
  }

  __device__ __forceinline__ void finish_band() const {
    if (band_end >= 0) to.bands[band_end] = begun;
  }

  // From products to scores. A few at a time, by rotation: fully unrolled, the loads would take too many registers.
  __device__ __forceinline__ void add_scores(Scores &scores, const Sequence<T> &at, const Sight &sight,
                                             int other) const {
#pragma unroll 1
    for (int group = 0; group < E::GROUPS; ++group, rotate<1>(scores))
#pragma unroll
      for (int i = 0; i < E::WIDTH; ++i) {
        const int row = sight.first + E::row(group, i), column = other + E::column(group, i);
        if (row < sight.own && column < sight.others)
          scores[0][i] = at.score(scores[0][i], BY_KEYS ? column : row, BY_KEYS ? row : column, problem);
      }
  }

  // Fills the buffer of the others from `other` on.
  __device__ __forceinline__ void draw(const Sequence<T> &at, const Sight &sight, int other,
                                       unsigned char *kept) const {
    constexpr int EACH = QUERIES_AT_ONCE * 16 / S::THREADS > 2 ? QUERIES_AT_ONCE * 16 / S::THREADS : 2;
    const int query = threadIdx.x * EACH / 16, residue = threadIdx.x * EACH % 16;
    if (query >= QUERIES_AT_ONCE) return;
    const int block = (BY_KEYS ? sight.first : other) / 64;
    const long long row = at.bits_row + ((BY_KEYS ? other : sight.first) + query) * (long long)problem.heads;
    kept += other / UNIT % 2 * KEPT + query * 8;
    const unsigned long long key = dropout.seed.read();
#pragma unroll 1
    for (int i = residue; i < residue + EACH; i += 2)
      kept[i / 2] = dropout.kept(row, block, i, key) | dropout.kept(row, block, i + 1, key) << 4;
  }

  // A bit for each of the thread's scores: whether its probability is kept.
  __device__ __forceinline__ unsigned read_drawn(const unsigned char *drawn, const Sight &sight, int other) const {
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < E::COUNT; ++i) {
      const int row = E::row(i / E::WIDTH, i), column = E::column(i / E::WIDTH, i);
      const unsigned query = BY_KEYS ? column : row, key = BY_KEYS ? sight.first + row : other + column;
      kept |= (drawn[query * 8 + key % 16 / 2] >> (key % 2 * 4 + key / 16 % 4) & 1u) << i;
    }
    return kept;
  }

  __device__ __forceinline__ void drop(Scores &values, unsigned kept) const {
#pragma unroll
    for (int i = 0; i < E::COUNT; ++i) values[i / E::WIDTH][i % E::WIDTH] *= kept >> i & 1 ? dropout.factor : 0.f;
  }

  __device__ __forceinline__ void write(const Scores &grads, const Sight &sight, int other) const {
#pragma unroll
    for (int i = 0; i < E::COUNT; ++i) {
      const int row = sight.first + E::row(i / E::WIDTH, i), column = other + E::column(i / E::WIDTH, i);
      if (row < sight.own && column < sight.others)
        to.each[row * (long long)to.longest_k + column] = grads[i / E::WIDTH][i % E::WIDTH];
    }
  }
};

// The work of a block. first_sum, second_sum: arrays of the goal. The heads of the launch, of queries or of keys, are
// gridDim.y from `first_head` on.
template <class E, int GOAL, bool ADDED, class T>
__device__ __forceinline__ void differentiate(T *first_sum, T *second_sum, const Strides &strides, ScoreGradients to,
                                              const Inputs<T> &inputs, const BackwardInputs<T> &backward,
                                              const Problem &problem, const Terms &terms, const Dropout &dropout,
                                              int first_head) {
  using W = Walk<E, GOAL, ADDED, T>;
  using S = typename E::S;
  const int heads = W::BY_KEYS ? problem.sharing : 1, own_head = first_head + blockIdx.y, head = own_head * heads;
  int sequence;
  const int first = W::BY_KEYS ? find_tile(sequence, inputs.cu_seqlens_k, problem.length_k, problem.sequences, S::ROWS)
                               : find_tile(sequence, inputs.cu_seqlens, problem.length, problem.sequences, S::ROWS);
  const Place place = place_of(problem, inputs, sequence, head, 0);
  Sight sight = W::BY_KEYS ? Sight{first, place.keys, place.queries, -place.above, -place.below}
                           : Sight{first, place.queries, place.keys, place.below, place.above};
  if (first >= sight.own) return;
  const bool packed = inputs.cu_seqlens;
  if constexpr (GOAL == QUERIES && ADDED)  // nothing is written beyond a wrong `longest`
    if (to.each || to.bands) sight.others = min(sight.others, to.longest_k);
  DYNAMIC_SHARED(shared);
  SHARED_ARRAY(float4, states, W::STATES);
  SHARED_ARRAY(unsigned char, kept, 2 * W::KEPT);
  T *own = reinterpret_cast<T *>(shared);
  if (to.each)
    to.each = to.each_of(sequence, place.begin + (packed ? 0 : sequence * (long long)problem.length), blockIdx.y);
  const long long strip = blockIdx.x * (S::ROWS / E::HEIGHT) + E::first_row() / E::HEIGHT;
  if (to.bands) to.bands += (strip * problem.heads + head) * band_size(to.longest_k, S::KEYS);
  W walk{inputs, backward, problem, terms, dropout, to,
         E{reinterpret_cast<float *>(own + 2 * W::OWN + E::STAGES * 2 * W::OTHER)}};
#pragma unroll 1
  for (int i = 0; i < heads; ++i) {
    const Sequence<T> at(problem, inputs, backward, terms, place_of(problem, inputs, sequence, head + i, 0),
                         blockIdx.y * heads + i);
    if (i) __syncthreads();  // all threads are done with the tiles
    if (i == 0) {
      const bool by_keys = W::BY_KEYS;
      load_rows<S, S::ROWS>(own, by_keys ? at.inputs.key : at.inputs.query, by_keys ? problem.key : problem.query,
                            first, sight.own, problem.head_dim);
      if (W::FIRST)
        load_rows<S, S::ROWS>(own + W::OWN, by_keys ? at.inputs.value : at.grad_output,
                              by_keys ? problem.value : problem.grad_output, first, sight.own, problem.head_dim);
    }
    walk.meet(at, sight, own, states, kept, i == 0);
  }
  if constexpr (GOAL == QUERIES && ADDED) walk.finish_band();
  cp_async_commit();  // without any tile, nothing has committed the copies of the block's own tiles
  cp_async_wait<0>();
  __syncthreads();
  const long long begin = (W::BY_KEYS ? place.begin_k : place.begin) + first;
  const int rows = sight.own - first;
  if constexpr (W::FIRST)
    E::store(begin_of(first_sum, strides.first, place.batch, own_head, begin), strides.first[2], own, walk.first,
             problem.scale, rows, problem.head_dim);
  if constexpr (W::SECOND)
    E::store(begin_of(second_sum, strides.second, place.batch, own_head, begin), strides.second[2], own + W::OWN,
             walk.second, 1.f, rows, problem.head_dim);
}
