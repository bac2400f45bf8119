// Terms of relative position for the probabilities.
#include "probs.cuh"
#include "relative_terms.cuh"

template <class T> struct RelativeProbsTerms {
  static constexpr int BAND = 64, PITCH = 33;
  RelativeInputs<T> inputs;
  const Relative &relative;
  const Problem &problem;
  int query, queries, keys, distance;  // distance: of the bands' first row
  float *positions, *key_band, *query_band;
  const float *query_tile;

  __device__ __forceinline__ void begin(const ProbsPlace &found, const float *tile) {
    inputs.enter(relative, found.place);
    query_tile = tile;
    query = found.query, queries = found.place.queries, keys = found.place.keys;
    distance = query + keys - queries - found.key - 31;
  }

  __device__ __forceinline__ void fetch(int d0) {
    const int x = threadIdx.x % 32, y = threadIdx.x / 32, d = d0 + x;
    if (inputs.query_for_position)
#pragma unroll 1
      for (int row = y; row < 32; row += 8) {
        const bool there = d < problem.head_dim && query + row < queries;
        const long long offset = (query + row) * relative.query_for_position[2] + d;
        positions[row * PITCH + x] = there ? to_float(inputs.query_for_position[offset]) : 0.f;
      }
#pragma unroll 1
    for (int row = y; row < BAND; row += 8) {
      const int index = row_of_distance(inputs.distance_rows, problem.distances, distance + row);
      const bool there = d < problem.head_dim && (unsigned)index < (unsigned)problem.rows;
      fill(key_band, inputs.position_key, row * PITCH + x, index * relative.position_key[2] + d, there);
      fill(query_band, inputs.position_query, row * PITCH + x, index * relative.position_query[2] + d, there);
    }
  }

  static __device__ __forceinline__ void fill(float *band, const T *table, int at, long long offset, bool there) {
    if (table) band[at] = there ? to_float(table[offset]) : 0.f;
  }

  __device__ __forceinline__ void add(float (&scores)[4], const float *key_tile) const {
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    const float *p = inputs.query_for_position ? positions : query_tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = y + 8 * i, band_row = row - x + 31;
      if (inputs.position_key)
#pragma unroll 8
        for (int k = 0; k < 32; ++k) scores[i] = fmaf(p[row * PITCH + k], key_band[band_row * PITCH + k], scores[i]);
      if (inputs.position_query)
#pragma unroll 8
        for (int k = 0; k < 32; ++k)
          scores[i] = fmaf(key_tile[x * PITCH + k], query_band[band_row * PITCH + k], scores[i]);
    }
  }

  __device__ __forceinline__ void adjust(float &score, int query, int key) const {
    if (inputs.segment_scores)
      score += SegmentRow<T>(inputs, relative, query, queries).score(inputs.segment_ids_k[key]);
  }
};
