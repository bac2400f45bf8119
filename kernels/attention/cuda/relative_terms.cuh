// The parts of the scores that depend on relative position and on segments, as terms of the attention kernels (NoTerms
// in problem.cuh describes when each function is called).
//
// In a tile of queries and keys the distances are a range: ROWS + KEYS - 1 of them. Their rows of the tables, padded to
// a multiple of KEYS, are copied to shared memory as a band, row by row through distance_rows: the score of row i and
// column j uses band row i - j + KEYS - 1. So a product with the table becomes one with the band, and nothing is
// gathered element by element. The next KEYS keys need the same rows except KEYS, which replace as many that are no
// longer needed: a band is a ring.
#include "problem.cuh"

// Passed by value; RELATIVE in relative.py is its NumPy twin. Strides: batch, head, token or row of the table.
struct Relative {
  long long query_for_position[3], position_key[3], position_query[3], segment_scores[3];
  long long segment_ids, segment_ids_k;  // of a batch
};

// Null where absent; of one sequence and head after `enter`.
template <class T> struct RelativeInputs {
  const T *query_for_position, *position_key, *position_query, *segment_scores;
  const int *distance_rows, *segment_ids, *segment_ids_k;

  __device__ __forceinline__ void enter(const Relative &relative, const Place &place) {
    const int batch = place.batch, head = place.head;
    if (query_for_position)
      query_for_position = begin_of(query_for_position, relative.query_for_position, batch, head, place.begin);
    if (position_key) position_key = begin_of(position_key, relative.position_key, 0, head, 0);
    if (position_query) position_query = begin_of(position_query, relative.position_query, 0, head, 0);
    if (!segment_scores) return;
    segment_scores = begin_of(segment_scores, relative.segment_scores, batch, head, place.begin);
    segment_ids += batch * relative.segment_ids + place.begin;
    segment_ids_k += batch * relative.segment_ids_k + place.begin_k;
  }
};

// A row of segment scores: the addends of a query for keys of its own segment, and of another.
template <class T> struct SegmentRow {
  int id = 0;
  float same = 0.f, other = 0.f;

  __device__ __forceinline__ SegmentRow(const RelativeInputs<T> &inputs, const Relative &relative, int query,
                                        int queries) {
    if (query >= queries) return;
    const T *scores = inputs.segment_scores + query * relative.segment_scores[2];
    id = inputs.segment_ids[query], same = to_float(scores[0]), other = to_float(scores[1]);
  }
  __device__ __forceinline__ float score(int id_k) const { return id_k == id ? same : other; }
};

// Tiles of shared memory after those of `attend`: query_for_position if it is not the query, and the tables' bands.
template <class T, class S> struct RelativeTiles {
  // The KEYS rows that are fetched at once do not wrap around.
  static constexpr int BAND = (S::ROWS + 2 * S::KEYS - 2) / S::KEYS * S::KEYS, ROW = S::PITCH * VECTOR<T>;
  RelativeInputs<T> inputs;
  const Relative &relative;
  const Problem &problem;
  int first, queries, keys, distance;  // distance: of the band's first row for the keys from 0 on
  const T *positions;                            // queries for position
  T *key_band, *query_band, *room;               // null if the table is absent; the memory after the tiles
  int turned = -1;                               // the index in the rings of their row 0; -1: they are still empty

  __device__ __forceinline__ RelativeTiles(const RelativeInputs<T> &inputs, const Relative &relative,
                                           const Problem &problem)
      : inputs(inputs), relative(relative), problem(problem) {}

  __device__ __forceinline__ void begin(const Place &place, const T *query_tile, T *free) {
    inputs.enter(relative, place);
    first = place.first, queries = place.queries, keys = place.keys;
    distance = first + keys - queries - (S::KEYS - 1);
    room = free;
    positions = query_tile;
    if (inputs.query_for_position) {
      positions = room;
      load_rows<S, S::ROWS>(room, inputs.query_for_position, relative.query_for_position, first, queries,
                            problem.head_dim);
      room += S::ROWS * ROW;
    }
    key_band = take_band(inputs.position_key);
    query_band = take_band(inputs.position_query);
  }

  __device__ __forceinline__ T *take_band(const T *table) {
    T *band = table ? room : nullptr;
    if (table) room += BAND * ROW;
    return band;
  }

  // The bands for the keys from `column` on, which follow those of the last call.
  __device__ __forceinline__ void fetch(int column) {
    const int count = turned < 0 ? BAND : S::KEYS, lowest = distance - column;
    turned = turned < 0 ? 0 : turned == 0 ? BAND - S::KEYS : turned - S::KEYS;
    const int first = turned * ROW;
    if (key_band) load_band(key_band + first, inputs.position_key, relative.position_key[2], lowest, count);
    if (query_band) load_band(query_band + first, inputs.position_query, relative.position_query[2], lowest, count);
  }

  // The index of row `row` of the bands in the rings.
  __device__ __forceinline__ int in_ring(int row) const {
    row += turned;
    return row >= BAND ? row - BAND : row;
  }

  // As load_tile of tile.cuh, with `count` rows of the distances from `lowest` on.
  __device__ __forceinline__ void load_band(T *band, const T *table, long long stride, int lowest, int count) const {
    constexpr int STEP = S::THREADS / S::CHUNKS;
    static_assert(S::THREADS % S::CHUNKS == 0 && S::KEYS % STEP == 0, "every thread copies as many chunks");
    const int row0 = threadIdx.x / S::CHUNKS, chunk = threadIdx.x % S::CHUNKS;
    const bool inside = chunk * VECTOR<T> < problem.head_dim;  // the launcher pads rows to whole chunks
    table += chunk * VECTOR<T>;
#pragma unroll(S::KEYS / STEP)
    for (int row = row0; row < count; row += STEP) {
      const int index = row_of_distance(inputs.distance_rows, problem.distances, lowest + row);
      const bool known = (unsigned)index < (unsigned)problem.rows;
      cp_async(chunk_of<S::PITCH>(band, row, chunk), table + index * stride, inside && known);
    }
  }
};
