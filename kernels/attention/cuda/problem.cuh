// Common parts of the attention kernels: where a block's queries and keys are, and the terms added to their scores.
#include "tile.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr int NO_MASK = 0, BOOL_MASK = 1, FLOAT_MASK = 2;

// The terms that a kernel is compiled to add to scores; each part of EVERYTHING may be absent. BY_KEY: bias and mask
// are the same for all queries. BY_DISTANCE: a bias of each distance. Both are staged in shared memory, tile by tile.
enum Added { NOTHING = 0, BY_KEY = 1, BY_DISTANCE = 2, BY_SCORE = 4, EVERYTHING = BY_DISTANCE | BY_SCORE };

// Passed by value; PROBLEM in problem.py is its NumPy twin. Strides are in elements, 0 where an array is broadcast.
struct Problem {
  long long query[3], key[3], value[3], grad_output[3];  // batch, head, token; grad_output: of the backward alone
  long long attn_mask[4], bias[4];       // sequence, head, query, key
  long long position_bias[2];            // row of the tables, head
  int heads, sharing, sequences, length, length_k, head_dim, mask_kind;  // sharing: query heads of a head of keys
  int rows, distances;                                                   // of the tables, of distance_rows
  int left, right;                                                       // of the window
  float scale;
  bool is_causal, pairs;  // pairs: an even key and the next one can be read from bias and mask at once
};

// The arrays that give the scores, and the values that they weight; null if absent.
template <class T> struct Inputs {
  const T *query, *key, *value;
  const int *cu_seqlens, *cu_seqlens_k;
  const void *attn_mask;
  const T *bias, *position_bias;
  const int *distance_rows;
};

// Copies rows first, first + 1, .. of `array` (queries, keys or values, `rows` in all) into a tile; see load_tile.
template <class S, int ROWS, class T>
__device__ __forceinline__ void load_rows(T *tile, const T *array, const long long (&strides)[3], int first, int rows,
                                          int head_dim) {
  const int columns = (head_dim + VECTOR<T> - 1) / VECTOR<T> * VECTOR<T>;  // the launcher pads with zeros
  load_tile<ROWS, S::CHUNKS, S::PITCH, S::THREADS>(tile, array + first * strides[2], strides[2], rows - first, columns);
}

// The last sequence whose first tile is not beyond `tile`. Sequence s owns the tiles from cu_seqlens[s] / rows + s
// on: a closed form that leaves each at least ceil(length / rows) of them, so that a grid of tokens / rows +
// sequences blocks needs neither a table nor the lengths on the host, and at most one block per sequence finds
// nothing to do. A warp reads 32 offsets at once: one step for 32 sequences, two for a thousand.
__device__ __forceinline__ int find_sequence(const int *cu_seqlens, int sequences, int tile, int rows) {
  int low = 0, count = sequences;
  while (count > 1) {
    const int step = (count + WARP - 1) / WARP, offset = (int)(threadIdx.x % WARP) * step;
    const bool begins = offset < count && cu_seqlens[low + offset] / rows + low + offset <= tile;
    const int skipped = (__popc(__ballot_sync(FULL_MASK, begins)) - 1) * step;
    low += skipped;
    count = min(step, count - skipped);
  }
  return low;
}

// One tile of queries of one sequence and head.
struct Place {
  int sequence, batch, head;  // batch: the sequence, 0 in packed arrays
  int queries, keys;          // lengths of the sequence
  int first;                  // the tile's first query within the sequence; not below `queries` if the tile is empty
  int below, above;           // causality and window let query i see the keys from i + below to i + above
  long long begin, begin_k;   // the sequence's first token

  __device__ __forceinline__ bool hides(int query, int key) const {
    return key < query + below || key > query + above;
  }
  // The first key that a tile's queries see, rounded down to the start of its tile: tiles of `keys` begin at the same
  // keys whatever the queries are, so that no sum's order depends on the queries (hidden keys add zeros).
  __device__ __forceinline__ int first_key(int keys) const { return max(first + below, 0) / keys * keys; }
  // The end of the keys that a tile of `rows` queries sees.
  __device__ __forceinline__ int end_key(int rows) const { return min(keys, min(first + rows, queries) + above); }
};

template <class T>
__device__ __forceinline__ Place place_of(const Problem &problem, const Inputs<T> &inputs, int sequence, int head,
                                          int first) {
  Place place = {sequence, sequence, head, problem.length, problem.length_k, first};
  if (inputs.cu_seqlens) {
    place.batch = 0;
    place.begin = inputs.cu_seqlens[sequence], place.queries = inputs.cu_seqlens[sequence + 1] - place.begin;
    place.begin_k = inputs.cu_seqlens_k[sequence], place.keys = inputs.cu_seqlens_k[sequence + 1] - place.begin_k;
  }
  const int position = place.keys - place.queries;  // of query 0 among the keys
  place.below = position - problem.left, place.above = position + problem.right;
  if (problem.is_causal) place.above = min(place.above, 0);
  return place;
}

// The first row of the block's tile of `rows` queries, or keys, within its sequence; offsets are null in dense arrays.
__device__ __forceinline__ int find_tile(int &sequence, const int *offsets, int length, int sequences, int rows) {
  const int tile = blockIdx.x;
  if (offsets) {
    sequence = find_sequence(offsets, sequences, tile, rows);
    return (tile - offsets[sequence] / rows - sequence) * rows;
  }
  const int tiles = (length + rows - 1) / rows;
  sequence = tile / tiles;
  return tile % tiles * rows;
}

// The block's place, for tiles of `rows` queries.
template <class T>
__device__ __forceinline__ Place find_place(const Problem &problem, const Inputs<T> &inputs, int rows) {
  int sequence;
  const int first = find_tile(sequence, inputs.cu_seqlens, problem.length, problem.sequences, rows);
  return place_of(problem, inputs, sequence, blockIdx.y, first);
}

template <class T>
__device__ __forceinline__ T *begin_of(T *array, const long long (&strides)[3], int batch, int head, long long token) {
  return array + batch * strides[0] + head * strides[1] + token * strides[2];
}

// Moves query, key and value to the place's sequence and head.
template <class T>
__device__ __forceinline__ void enter(Inputs<T> &inputs, const Problem &problem, const Place &place) {
  const int head_k = place.head / problem.sharing;
  inputs.query = begin_of(inputs.query, problem.query, place.batch, place.head, place.begin);
  inputs.key = begin_of(inputs.key, problem.key, place.batch, head_k, place.begin_k);
  inputs.value = begin_of(inputs.value, problem.value, place.batch, head_k, place.begin_k);
}

// Where the sequence and head begin in the output, whose memory is (tokens, heads, head_dim) when packed, else (batch,
// heads, length, head_dim): the number of their first row, and its first element.
__device__ __forceinline__ long long output_row(const Problem &problem, const Place &place, bool packed) {
  return packed ? place.begin * problem.heads + place.head
                : ((long long)place.sequence * problem.heads + place.head) * problem.length;
}

__device__ __forceinline__ long long output_begin(const Problem &problem, const Place &place, bool packed) {
  return output_row(problem, place, packed) * problem.head_dim;
}

__device__ __forceinline__ long long output_stride(const Problem &problem, bool packed) {
  return (long long)problem.head_dim * (packed ? problem.heads : 1);
}

// The lse of a query: its highest score and the logarithm of the sum of exponentials, (-inf, 0) if it sees no key.
__device__ __forceinline__ float2 highest_and_log(float peak, float total) {
  if (total != total) return make_float2(total, total);
  return total == 0.f ? make_float2(-INFINITY, 0.f) : make_float2(peak, logf(total));
}

// As output_begin, for lse, (batch, heads, length).
__device__ __forceinline__ long long lse_begin(const Problem &problem, const Place &place) {
  return ((long long)place.batch * problem.heads + place.head) * problem.length + place.begin;
}

// Moves the rows of a register array STEP places to the front, the first ones to the end. Registers cannot be indexed
// at run time: a loop that works on the first STEP rows and then rotates sees all of them, and the program contains its
// body once instead of unrolled.
template <int STEP, int ROWS, int COLUMNS> __device__ __forceinline__ void rotate(float (&rows)[ROWS][COLUMNS]) {
#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
    float first[STEP];
#pragma unroll
    for (int row = 0; row < STEP; ++row) first[row] = rows[row][column];
#pragma unroll
    for (int row = 0; row < ROWS - STEP; ++row) rows[row][column] = rows[row + STEP][column];
#pragma unroll
    for (int row = 0; row < STEP; ++row) rows[ROWS - STEP + row][column] = first[row];
  }
}

// The row of the tables for a distance; not in [0, rows) if distance_rows is wrong.
__device__ __forceinline__ int row_of_distance(const int *distance_rows, int distances, int distance) {
  return distance_rows[min(max(distance + distances / 2, 0), distances - 1)];
}

// The terms added to the scaled scores of one sequence and head: where they begin in their arrays. The pointers stay in
// `inputs`, kernel arguments: through shared memory they would be addresses of an unknown kind.
struct AddedScores {
  long long position_bias, bias, mask;
  int position;  // of query 0 among the keys

  // The bias for a distance of query and key, 0 for a distance without a row.
  template <class T>
  __device__ __forceinline__ float of_distance(int distance, const Problem &problem, const Inputs<T> &inputs) const {
    if (!inputs.position_bias) return 0.f;
    const int row = row_of_distance(inputs.distance_rows, problem.distances, distance);
    const bool known = (unsigned)row < (unsigned)problem.rows;
    return known ? to_float(inputs.position_bias[position_bias + row * problem.position_bias[0]]) : 0.f;
  }

  // The addend of BY_KEY to the scores of key j.
  template <class T>
  __device__ __forceinline__ float of_key(int j, const Problem &problem, const Inputs<T> &inputs) const {
    const long long at = mask + j * problem.attn_mask[3];
    float sum = 0.f;
    if (inputs.bias) sum = to_float(inputs.bias[bias + j * problem.bias[3]]);
    if (problem.mask_kind == FLOAT_MASK) sum += to_float(static_cast<const T *>(inputs.attn_mask)[at]);
    if (problem.mask_kind == BOOL_MASK && !static_cast<const bool *>(inputs.attn_mask)[at]) sum -= INFINITY;
    return sum;
  }

  // Bias and mask on the score of query i and key j, both within the sequence.
  template <class T>
  __device__ __forceinline__ float mask_score(float score, int i, int j, const Problem &problem,
                                              const Inputs<T> &inputs) const {
    if (inputs.bias) score += to_float(inputs.bias[bias + i * problem.bias[2] + j * problem.bias[3]]);
    const long long at = mask + i * problem.attn_mask[2] + j * problem.attn_mask[3];
    if (problem.mask_kind == FLOAT_MASK) score += to_float(static_cast<const T *>(inputs.attn_mask)[at]);
    if (problem.mask_kind == BOOL_MASK && !static_cast<const bool *>(inputs.attn_mask)[at]) score -= INFINITY;
    return score;
  }

  template <class T>
  __device__ __forceinline__ float apply(float score, int i, int j, const Problem &problem,
                                         const Inputs<T> &inputs) const {
    return mask_score(score + of_distance(i + position - j, problem, inputs), i, j, problem, inputs);
  }
};

__device__ __forceinline__ AddedScores find_added_scores(const Problem &problem, const Place &place) {
  return {place.head * problem.position_bias[1], place.sequence * problem.bias[0] + place.head * problem.bias[1],
          place.sequence * problem.attn_mask[0] + place.head * problem.attn_mask[1], place.keys - place.queries};
}

// The addends that ADDED stages for a tile: by key, or by distance, beginning with that of row 0 and the last key. A
// thread loads its part before the first product, and writes it to shared memory after it.
template <class S, int ADDED> struct Stage {
  static constexpr int COUNT = ADDED & BY_DISTANCE ? S::ROWS + S::KEYS : ADDED == BY_KEY ? S::KEYS : 0;
  static constexpr int EACH = (COUNT + S::THREADS - 1) / S::THREADS, ROOM = COUNT ? COUNT : 1;
  float held[EACH ? EACH : 1];

  template <class T>
  __device__ __forceinline__ void load(const AddedScores &added, const Place &place, int column, const Problem &problem,
                                       const Inputs<T> &inputs) {
    const int distance = place.first + added.position - column - (S::KEYS - 1);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int at = threadIdx.x + i * S::THREADS;
      if (ADDED & BY_DISTANCE) held[i] = added.of_distance(distance + at, problem, inputs);
      else held[i] = column + at < place.keys ? added.of_key(column + at, problem, inputs) : 0.f;
    }
  }

  __device__ __forceinline__ void put(float *room) const {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int at = threadIdx.x + i * S::THREADS;
      if (at < COUNT) room[at] = held[i];
    }
  }

  // The index in `room` for a row of the tile of queries and a key of the tile of keys.
  static __device__ __forceinline__ int distance_at(int row, int key) { return row - key + S::KEYS - 1; }
};

// The terms that a kernel adds to the products of queries and keys, before they are scaled: here none.
struct NoTerms {
  // Called once, with the copies of the queries; `room`: shared memory after the tiles. The thread's first copies.
  template <class T> __device__ __forceinline__ void begin(const Place &, const T *queries, T *room) {}
  // Begins the copies that accompany those of the keys from `column` on.
  __device__ __forceinline__ void fetch(int column) {}
  // The copies have arrived, for all threads; nothing fetches the next until all of them have met at a barrier.
  // `fresh`: the warp did not add to the scores of the keys before `column`.
  template <class Scores, class T>
  __device__ __forceinline__ void add(Scores &, const T *keys, int column, bool fresh) {}
};
