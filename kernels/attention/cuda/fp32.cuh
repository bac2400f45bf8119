// Attention for float32 by ordinary FMA (no tf32: exact to fp32 rounding). As in tensor_cores.cuh a block walks over
// the keys; its 8 x 16 threads hold the scores of every 8th row and 16th key, and every 8th row of D / 16 output
// columns.
#include "problem.cuh"

// Queries, keys and values fill 64 KB at most, the largest block of sm_75.
template <int D_, int ROWS_ = (D_ <= 128 ? 64 : 32), int KEYS_ = (D_ <= 64 ? 64 : D_ <= 128 ? 32 : 16)>
struct Fp32Tiling {
  static constexpr int D = D_, CHUNKS = D / 4, PITCH = CHUNKS, THREADS = 128;
  static constexpr int ROWS = ROWS_, KEYS = KEYS_;
  static constexpr int R = ROWS / 8, C = KEYS / 16;  // rows and keys per thread
  static constexpr int WIDTH = D < 64 ? D / 16 : 4;  // adjacent columns
  static constexpr int GROUPS = D / 16 / WIDTH;      // of such columns, 64 apart
  static constexpr int PROBS_PITCH = KEYS + 16;  // the probabilities reuse the memory of the keys
  static constexpr int KEY_FLOATS = KEYS * D > ROWS * PROBS_PITCH ? KEYS * D : ROWS * PROBS_PITCH;
};

template <class S> using Fp32Scores = float[S::R][S::C];
template <class S> using Fp32Output = float[S::R][S::GROUPS][S::WIDTH];

template <int CHUNKS> __device__ __forceinline__ float4 read_chunk(const float *tile, int row, int chunk) {
  return *reinterpret_cast<const float4 *>(chunk_of<CHUNKS>(tile, row, chunk));
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

template <class S>
__device__ __forceinline__ void multiply_keys_fp32(Fp32Scores<S> &scores, const float *queries, const float *keys,
                                                   int y, int x) {
#pragma unroll
  for (int i = 0; i < S::R * S::C; ++i) scores[i / S::C][i % S::C] = 0.f;
#pragma unroll 2
  for (int chunk = 0; chunk < S::CHUNKS; ++chunk) {
    float4 k[S::C];
#pragma unroll
    for (int j = 0; j < S::C; ++j) k[j] = read_chunk<S::CHUNKS>(keys, x + 16 * j, chunk);
#pragma unroll
    for (int i = 0; i < S::R; ++i) {
      const float4 q = read_chunk<S::CHUNKS>(queries, y + 8 * i, chunk);
#pragma unroll
      for (int j = 0; j < S::C; ++j) scores[i][j] = dot(q, k[j], scores[i][j]);
    }
  }
}

template <class S>
__device__ __forceinline__ void multiply_values_fp32(Fp32Output<S> &output, const float *probs, const float *values,
                                                     int y, int x) {
#pragma unroll 1
  for (int key = 0; key < S::KEYS; key += 4) {
    float p[S::R][4];
#pragma unroll
    for (int i = 0; i < S::R; ++i) {
      const float4 four = *reinterpret_cast<const float4 *>(probs + (y + 8 * i) * S::PROBS_PITCH + key);
      p[i][0] = four.x, p[i][1] = four.y, p[i][2] = four.z, p[i][3] = four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int group = 0; group < S::GROUPS; ++group) {
        const int column = group * 64 + x * S::WIDTH;
        const float *v = chunk_of<S::CHUNKS>(values, key + k, column / 4) + column % 4;
#pragma unroll
        for (int i = 0; i < S::R; ++i)
#pragma unroll
          for (int w = 0; w < S::WIDTH; ++w) output[i][group][w] = fmaf(p[i][k], v[w], output[i][group][w]);
      }
  }
}

// Scale, bias, masks. `row`, `column`: of the thread's first score within the sequence; y, x: within the tile.
template <class S, int ADDED>
__device__ __forceinline__ void adjust_fp32(Fp32Scores<S> &scores, const float *staged, const AddedScores &added,
                                            const Problem &problem, const Inputs<float> &inputs, int row, int column,
                                            const Place &place, int y, int x) {
#pragma unroll
  for (int i = 0; i < S::R; ++i)
#pragma unroll
    for (int j = 0; j < S::C; ++j) {
      const float term = ADDED == NOTHING  ? 0.f
                         : ADDED == BY_KEY ? staged[x + 16 * j]
                                           : staged[Stage<S, ADDED>::distance_at(y + 8 * i, x + 16 * j)];
      scores[i][j] = ADDED == NOTHING ? scores[i][j] * problem.scale : fmaf(scores[i][j], problem.scale, term);
    }
  if constexpr ((ADDED & BY_SCORE) != 0) {
#pragma unroll 1
    for (int i = row; i < row + S::ROWS; i += 8, rotate<1>(scores))
#pragma unroll
      for (int j = 0; j < S::C; ++j)
        if (i < place.queries && column + 16 * j < place.keys)
          scores[0][j] = added.mask_score(scores[0][j], i, column + 16 * j, problem, inputs);
  }
  const int first = row - y, first_key = column - x;
  if (first_key >= first + S::ROWS - 1 + place.below && first_key + S::KEYS <= min(place.keys, first + place.above + 1))
    return;  // all of the tile's keys are seen by all of its queries
#pragma unroll
  for (int i = 0; i < S::R; ++i)
#pragma unroll
    for (int j = 0; j < S::C; ++j)
      if (column + 16 * j >= place.keys || place.hides(row + 8 * i, column + 16 * j)) scores[i][j] = -INFINITY;
}

// Two instructions, where expf has eight. The subtraction is first: large scores times log2(e) would lose digits.
__device__ __forceinline__ float natural_exp(float x) { return exp2f(x * LOG2_E); }

// As in tensor_cores.cuh, in natural units: exponentials into `probs`, sums and output rescaled to the rows' new peaks.
template <class S>
__device__ __forceinline__ void softmax_step_fp32(float *probs, const Fp32Scores<S> &scores, float (&peak)[S::R],
                                                  float (&total)[S::R], Fp32Output<S> &output, int y, int x) {
#pragma unroll
  for (int i = 0; i < S::R; ++i) {
    float top = peak[i];
#pragma unroll
    for (int j = 0; j < S::C; ++j) top = fmaxf(top, scores[i][j]);
    top = warp_reduce<Max, 16>(top);
    const float base = top == -INFINITY ? 0.f : top, shrink = natural_exp(peak[i] - base);
    peak[i] = top;
    total[i] *= shrink;
#pragma unroll
    for (int j = 0; j < S::C; ++j) {
      const float p = natural_exp(scores[i][j] - base);
      total[i] += p;
      probs[(y + 8 * i) * S::PROBS_PITCH + x + 16 * j] = p;
    }
#pragma unroll
    for (int c = 0; c < S::GROUPS * S::WIDTH; ++c) output[i][c / S::WIDTH][c % S::WIDTH] *= shrink;
  }
}

// The work of a block; `terms`: see NoTerms.
template <class S, int ADDED, class Terms>
__device__ __forceinline__ void attend_fp32(float *output, float2 *lse, Inputs<float> inputs, const Problem &problem,
                                            Terms terms) {
  const bool packed = inputs.cu_seqlens;
  const Place place = find_place(problem, inputs, S::ROWS);
  if (place.first >= place.queries) return;
  DYNAMIC_SHARED(shared);
  float *queries = reinterpret_cast<float *>(shared), *keys = queries + S::ROWS * S::D, *values = keys + S::KEY_FLOATS;
  enter(inputs, problem, place);
  const AddedScores added = find_added_scores(problem, place);
  constexpr int ROOM = Stage<S, ADDED>::ROOM;
  SHARED_ARRAY(float, staged, ROOM);
  const int y = threadIdx.x / 16, x = threadIdx.x % 16, row = place.first + y;
  const int begin = place.first_key(S::KEYS), end = place.end_key(S::ROWS);
  Fp32Output<S> d = {};
  float peak[S::R], total[S::R];
#pragma unroll
  for (int i = 0; i < S::R; ++i) peak[i] = -INFINITY, total[i] = 0.f;

  load_rows<S, S::ROWS>(queries, inputs.query, problem.query, place.first, place.queries, problem.head_dim);
  terms.begin(place, queries, values + S::KEYS * S::D);
#pragma unroll 1
  for (int column = begin; column < end; column += S::KEYS) {
    __syncthreads();  // all threads are done with the previous probabilities and values
    load_rows<S, S::KEYS>(keys, inputs.key, problem.key, column, place.keys, problem.head_dim);
    terms.fetch(column);
    cp_async_commit();
    load_rows<S, S::KEYS>(values, inputs.value, problem.value, column, place.keys, problem.head_dim);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // queries and keys have arrived
    Fp32Scores<S> scores;
    Stage<S, ADDED> stage;
    stage.load(added, place, column, problem, inputs);
    multiply_keys_fp32<S>(scores, queries, keys, y, x);
    terms.add(scores, keys, column, column == begin);
    stage.put(staged);
    __syncthreads();  // all threads are done with the keys; the staged addends have arrived
    adjust_fp32<S, ADDED>(scores, staged, added, problem, inputs, row, column + x, place, y, x);
    softmax_step_fp32<S>(keys, scores, peak, total, d, y, x);
    cp_async_wait<0>();
    __syncthreads();  // probabilities and values have arrived
    multiply_values_fp32<S>(d, keys, values, y, x);
  }

  cp_async_commit();  // without keys, nothing has committed the copies of the queries
  cp_async_wait<0>();
  lse += lse_begin(problem, place);
  output += output_begin(problem, place, packed);
#pragma unroll
  for (int i = 0; i < S::R; ++i) {
    const float sum = warp_reduce<Sum, 16>(total[i]), inverse = sum == 0.f ? 0.f : 1.f / sum;
    const int i_query = row + 8 * i;
    if (i_query >= place.queries) continue;
    if (x == 0) lse[i_query] = highest_and_log(peak[i], sum);
#pragma unroll
    for (int c = 0; c < S::GROUPS * S::WIDTH; ++c) {
      const int column = c / S::WIDTH * 64 + x * S::WIDTH + c % S::WIDTH;
      if (column < problem.head_dim)
        output[i_query * output_stride(problem, packed) + column] = d[i][c / S::WIDTH][c % S::WIDTH] * inverse;
    }
  }
}
