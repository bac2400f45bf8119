// What the attention kernels have in common: where a block's queries and keys lie, and what is added to their scores.
#include "tile.cuh"

constexpr int NO_MASK = 0, BOOL_MASK = 1, FLOAT_MASK = 2;

// Passed by value; PROBLEM in cuda.py is its NumPy twin. Strides are in elements, 0 where an array is broadcast.
struct Problem {
  long long query[3], key[3], value[3];  // batch, head, token
  long long attn_mask[4], bias[4];       // sequence, head, query, key
  int heads, sequences, length, length_k, head_dim, mask_kind;
  float scale;
  bool is_causal;
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
// nothing to do. A warp looks at 32 places at once: one step for 32 sequences, two for a thousand.
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
  int sequence, head;
  int queries, keys;         // lengths of the sequence
  int first;                 // the tile's first query within the sequence; not below `queries` if the tile is empty
  long long begin, begin_k;  // the sequence's first token
};

__device__ __forceinline__ Place find_place(const Problem &problem, const int *cu_seqlens, const int *cu_seqlens_k,
                                            int rows) {
  Place place;
  const int tile = blockIdx.x;
  place.head = blockIdx.y;
  if (cu_seqlens) {
    const int s = place.sequence = find_sequence(cu_seqlens, problem.sequences, tile, rows);
    place.begin = cu_seqlens[s], place.queries = cu_seqlens[s + 1] - cu_seqlens[s];
    place.begin_k = cu_seqlens_k[s], place.keys = cu_seqlens_k[s + 1] - cu_seqlens_k[s];
    place.first = (tile - cu_seqlens[s] / rows - s) * rows;
  } else {
    const int tiles = (problem.length + rows - 1) / rows;
    place.sequence = tile / tiles, place.first = tile % tiles * rows;
    place.begin = place.begin_k = 0, place.queries = problem.length, place.keys = problem.length_k;
  }
  return place;
}

// The first element of the sequence and head in an array with these strides.
template <class T>
__device__ __forceinline__ T *begin_of(T *array, const long long (&strides)[3], const Place &place, bool packed,
                                       long long begin) {
  return array + (packed ? 0 : place.sequence) * strides[0] + place.head * strides[1] + begin * strides[2];
}

// Where the sequence and head begin in the output, whose memory is (tokens, heads, head_dim) when packed, else (batch,
// heads, length, head_dim).
__device__ __forceinline__ long long output_begin(const Problem &problem, const Place &place, bool packed) {
  const long long row = packed ? place.begin * problem.heads + place.head
                               : ((long long)place.sequence * problem.heads + place.head) * problem.length;
  return row * problem.head_dim;
}

__device__ __forceinline__ long long output_stride(const Problem &problem, bool packed) {
  return (long long)problem.head_dim * (packed ? problem.heads : 1);
}

// What lse holds of a query: its highest score and the logarithm of the sum of exponentials, (-inf, 0) if it sees no
// key.
__device__ __forceinline__ float2 highest_and_log(float peak, float total) {
  if (total != total) return make_float2(total, total);
  return total == 0.f ? make_float2(-INFINITY, 0.f) : make_float2(peak, logf(total));
}

// As output_begin, for lse, (batch, heads, length).
__device__ __forceinline__ long long lse_begin(const Problem &problem, const Place &place, bool packed) {
  return ((packed ? 0 : (long long)place.sequence) * problem.heads + place.head) * problem.length + place.begin;
}

// Moves the rows of a register array STEP places to the front, the first ones to the end. Registers cannot be indexed
// at run time: a loop that works on the first STEP rows and then rotates sees all of them, and its body stands in the
// program once instead of unrolled.
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

// Bias and mask of one sequence and head.
template <class T> struct AddedScores {
  const T *bias;
  const void *mask;
  long long bias_query, bias_key, mask_query, mask_key;
  int mask_kind;

  // The score of query i and key j, both within the sequence.
  __device__ __forceinline__ float apply(float score, int i, int j) const {
    if (bias) score += to_float(bias[i * bias_query + j * bias_key]);
    const long long offset = i * mask_query + j * mask_key;
    if (mask_kind == FLOAT_MASK) score += to_float(static_cast<const T *>(mask)[offset]);
    if (mask_kind == BOOL_MASK && !static_cast<const bool *>(mask)[offset]) score = -INFINITY;
    return score;
  }
};

template <class T>
__device__ __forceinline__ AddedScores<T> find_added_scores(const Problem &problem, const Place &place,
                                                            const void *mask, const T *bias) {
  const long long mask_offset = place.sequence * problem.attn_mask[0] + place.head * problem.attn_mask[1];
  if (bias) bias += place.sequence * problem.bias[0] + place.head * problem.bias[1];
  if (problem.mask_kind == BOOL_MASK) mask = static_cast<const bool *>(mask) + mask_offset;
  if (problem.mask_kind == FLOAT_MASK) mask = static_cast<const T *>(mask) + mask_offset;
  return {bias, mask, problem.bias[2], problem.bias[3], problem.attn_mask[2], problem.attn_mask[3], problem.mask_kind};
}

// What a kernel adds to the products of queries and keys, before they are scaled: here nothing.
struct NoTerms {
  // Once, beside the copies of the queries; `room`: shared memory that follows the tiles. The thread's first copies.
  template <class T> __device__ __forceinline__ void begin(const Place &, const T *queries, T *room) {}
  // Begins the copies that go with those of the keys from `column` on.
  __device__ __forceinline__ void fetch(int column) {}
  // The copies have arrived, for all threads; nothing fetches the next until all of them have met at a barrier.
  template <class Scores, class T> __device__ __forceinline__ void add(Scores &, const T *keys, int column) {}
};
