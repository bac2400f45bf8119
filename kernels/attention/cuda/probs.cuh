// Probabilities on request: the scores are computed again, relative to the lse of the forward pass. Only
// output_attentions needs them, and writing takes most of the time, so fp32 arithmetic on plain tiles serves any dtype.
#include "problem.cuh"

// The position of tile (32 queries, 32 keys) number blockIdx.x in probs (sequences, heads, longest_q, longest_k).
struct ProbsPlace {
  Place place;
  int query, key;
};

template <class T>
__device__ __forceinline__ ProbsPlace find_probs_place(const Problem &problem, const Inputs<T> &inputs, int longest_q,
                                                       int longest_k) {
  const unsigned tiles_q = (longest_q + 31) / 32, tiles_k = (longest_k + 31) / 32;
  const unsigned rest = blockIdx.x / tiles_k, row = rest / tiles_q;
  const int query = rest % tiles_q * 32, key = blockIdx.x % tiles_k * 32;
  return {place_of(problem, inputs, row / problem.heads, row % problem.heads, query), query, key};
}

// Like NoTerms of problem.cuh, for probabilities.
struct NoProbsTerms {
  __device__ __forceinline__ void begin(const ProbsPlace &, const float *queries) {}
  // Copies the terms of columns d0 to d0 + 31 of queries and keys.
  __device__ __forceinline__ void fetch(int d0) {}
  // Adds the products over these columns.
  __device__ __forceinline__ void add(float (&scores)[4], const float *keys) {}
  // Adds the terms that are not products.
  __device__ __forceinline__ void adjust(float &score, int query, int key) {}
};

// probs = exp(score - highest - log of the sum), zero beyond the sequence's lengths. 256 threads: one key and every 8th
// query each.
template <class T, class Terms>
__device__ __forceinline__ void write_probs(T *probs, const float2 *lse, Inputs<T> inputs, const Problem &problem,
                                            int longest_q, int longest_k, Terms terms) {
  SHARED_ARRAY(float, queries, 32 * 33);
  SHARED_ARRAY(float, keys, 32 * 33);
  const ProbsPlace found = find_probs_place(problem, inputs, longest_q, longest_k);
  const Place &place = found.place;
  enter(inputs, problem, place);
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  float scores[4] = {};
  terms.begin(found, queries);
#pragma unroll 1
  for (int d0 = 0; d0 < problem.head_dim; d0 += 32) {
    const int d = d0 + x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = y + 8 * i, i_query = found.query + row, j_key = found.key + row;
      const bool query_there = d < problem.head_dim && i_query < place.queries;
      const bool key_there = d < problem.head_dim && j_key < place.keys;
      queries[row * 33 + x] = query_there ? to_float(inputs.query[i_query * problem.query[2] + d]) : 0.f;
      keys[row * 33 + x] = key_there ? to_float(inputs.key[j_key * problem.key[2] + d]) : 0.f;
    }
    terms.fetch(d0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 32; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = fmaf(queries[(y + 8 * i) * 33 + k], keys[x * 33 + k], scores[i]);
    terms.add(scores, keys);
  }

  const AddedScores added = find_added_scores(problem, place);
  const int j_key = found.key + x;
  lse += lse_begin(problem, place);
  probs += ((long long)place.sequence * problem.heads + place.head) * longest_q * longest_k;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int i_query = found.query + y + 8 * i;
    if (i_query >= longest_q || j_key >= longest_k) continue;
    float p = 0.f;
    if (i_query < place.queries && j_key < place.keys && lse[i_query].x != -INFINITY) {
      terms.adjust(scores[i], i_query, j_key);
      const bool hidden = place.hides(i_query, j_key);
      const float score = hidden ? -INFINITY : added.apply(scores[i] * problem.scale, i_query, j_key, problem, inputs);
      p = expf(score - lse[i_query].x - lse[i_query].y);
    }
    probs[(long long)i_query * longest_k + j_key] = from_float<T>(p);
  }
}
