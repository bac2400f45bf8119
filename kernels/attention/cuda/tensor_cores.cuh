// Attention for float16 and bfloat16 on tensor cores, after FlashAttention-2 (Dao 2023, arXiv:2307.08691).
//
// A block of warps computes a tile of queries of one sequence and head in a loop over its keys. Scores, probabilities
// and the output stay in the registers of the warp that owns the rows; the softmax is updated online. Key and value
// tiles have one buffer each and alternate: the values arrive while the scores are computed, the next keys during
// softmax and second product. Two buffers each would hide no more, and leave room for fewer blocks per multiprocessor.
#include "problem.cuh"

// A warp owns STRIPS_ times 16 rows. With two strips each fragment of keys or values it reads feeds two mma; with
// one, reading shared memory takes as long as multiplying, but half the registers suffice and twice the blocks run:
// better for short sequences and small batches. The queries stay in registers if the output leaves room.
template <int D_, int STRIPS_, int WARPS_ = 4, int KEYS_ = (D_ <= 64 ? 64 : D_ <= 128 ? 32 : 16)> struct Tiling {
  static constexpr int D = D_, CHUNKS = D / 8, PITCH = CHUNKS + 1, WARPS = WARPS_, THREADS = WARPS * WARP;
  static constexpr int STRIPS = STRIPS_, WARP_ROWS = 16 * STRIPS, ROWS = WARPS * WARP_ROWS, KEYS = KEYS_;
  static constexpr int HELD = D <= 64 && TARGET_ARCH >= 800 ? D / 16 : 1;  // steps of query fragments in registers
};

// [strip][n] is the 16 x 8 fragment of columns 8n..; elements 0, 1 belong to row lane / 4, elements 2, 3 to row + 8.
template <class S> using Scores = float[S::STRIPS * S::KEYS / 8][4];  // strip after strip
template <class S> using Output = float[S::STRIPS][S::D / 8][4];
template <class S> using Queries = unsigned[S::HELD][S::STRIPS][4];

// For each of the thread's rows: the largest score so far, and this thread's part of the sum of exponentials.
template <class S> struct RowState {
  float peak[S::STRIPS][2], total[S::STRIPS][2];
};

template <class T, class S>
__device__ __forceinline__ void load_queries(unsigned (&a)[S::STRIPS][4], const T *tile, int warp_row, int step) {
#pragma unroll
  for (int strip = 0; strip < S::STRIPS; ++strip) load_a<S::PITCH>(a[strip], tile, warp_row + strip * 16, step * 2);
}

// scores = queries keys^T
template <class T, class S>
__device__ __forceinline__ void multiply_keys(Scores<S> &scores, Queries<S> &held, const T *queries, const T *keys,
                                              int warp_row) {
  constexpr int N = S::KEYS / 8;
  constexpr bool RELOAD = S::HELD < S::D / 16;
#pragma unroll
  for (int i = 0; i < S::STRIPS * N * 4; ++i) scores[i / 4][i % 4] = 0.f;
#pragma unroll(RELOAD ? 2 : S::HELD)  // fully unrolled, ptxas would prefetch queries until it spills
  for (int step = 0; step < S::D / 16; ++step) {
    if constexpr (RELOAD) load_queries<T, S>(held[0], queries, warp_row, step);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned left[2], right[2];
      load_b<S::PITCH>(left, right, keys, n * 8, step * 2);
#pragma unroll
      for (int strip = 0; strip < S::STRIPS; ++strip) {
        mma<T>(scores[strip * N + n], held[RELOAD ? 0 : step][strip], left);
        mma<T>(scores[strip * N + n + 1], held[RELOAD ? 0 : step][strip], right);
      }
    }
  }
}

// output += probabilities values, for the columns from chunk `first` on; the scores' registers already are the fragments
// of the left factor.
template <class T, class S, int COLUMNS>
__device__ __forceinline__ void multiply_values(float (&output)[S::STRIPS][COLUMNS][4], const Scores<S> &probs,
                                                const T *values, int first = 0) {
#pragma unroll
  for (int step = 0; step < S::KEYS / 16; ++step) {
    unsigned a[S::STRIPS][4];
#pragma unroll
    for (int strip = 0; strip < S::STRIPS; ++strip)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&d)[4] = probs[strip * (S::KEYS / 8) + 2 * step + i / 2];
        a[strip][i] = pack<T>(d[i % 2 * 2], d[i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 2) {
      unsigned left[2], right[2];
      load_b_trans<S::PITCH>(left, right, values, step * 16, first + n);
#pragma unroll
      for (int strip = 0; strip < S::STRIPS; ++strip) {
        mma<T>(output[strip][n], a[strip], left);
        mma<T>(output[strip][n + 1], a[strip], right);
      }
    }
  }
}

__device__ __forceinline__ void add_to(float &score, bool visible) {
  if (!visible) score -= INFINITY;  // NaN stays
}
template <class T> __device__ __forceinline__ void add_to(float &score, T value) { score += to_float(value); }

// The same for two scores with one load.
__device__ __forceinline__ void add_pair(float &first, float &second, const bool *visible) {
  const unsigned both = *reinterpret_cast<const unsigned short *>(visible);
  add_to(first, (both & 0xff) != 0);
  add_to(second, both > 0xff);
}
template <class T> __device__ __forceinline__ void add_pair(float &first, float &second, const T *values) {
  const float2 both = unpack<T>(*reinterpret_cast<const unsigned *>(values));
  first += both.x, second += both.y;
}

template <class U> __device__ __forceinline__ U nothing_to_add() { return from_float<U>(0.f); }
template <> __device__ __forceinline__ bool nothing_to_add<bool>() { return true; }

// Adds to the scores of one of the thread's queries, in fragments `strip`.., the numbers from `row` on for its
// keys: `step` (0 or 1) elements apart, only the first `count` of them valid.
template <class S, class U>
__device__ __forceinline__ void add_row(Scores<S> &scores, int strip, int half, const U *row, int step, int count,
                                        bool pairs) {
  constexpr int N = S::KEYS / 8;
  if (pairs) {
#pragma unroll
    for (int n = 0; n < N; ++n)
      add_pair(scores[strip + n][half * 2], scores[strip + n][half * 2 + 1], row + n * 8);
  } else if (step == 1) {
#pragma unroll
    for (int n = 0; n < N * 2; ++n) {
      const int key = n / 2 * 8 + n % 2;
      U value = nothing_to_add<U>();
      if (key < count) value = row[key];
      add_to(scores[strip + n / 2][half * 2 + n % 2], value);
    }
  } else {
    const U value = *row;
#pragma unroll
    for (int n = 0; n < N * 2; ++n) add_to(scores[strip + n / 2][half * 2 + n % 2], value);
  }
}

// Scales raw products to natural units and adds biases and mask. `row`, `column`: of the warp's first score within the
// sequence; `warp_row`: within the tile; `staged`: see Stage.
template <class T, class S, int ADDED>
__device__ __forceinline__ void add_scores(Scores<S> &scores, const float *staged, const AddedScores &added,
                                           const Problem &problem, const Inputs<T> &inputs, const Place &place, int row,
                                           int warp_row, int column) {
  constexpr int N = S::KEYS / 8;
  const int lane = threadIdx.x % WARP, key = lane % 4 * 2;
  const float *by_distance = staged + Stage<S, ADDED>::distance_at(warp_row + lane / 4, key);
#pragma unroll
  for (int i = 0; i < S::STRIPS * N * 4; ++i) {
    const int strip = i / 4 / N, n = i / 4 % N, half = i / 2 % 2, e = i % 2;
    float &score = scores[i / 4][i % 4];
    const float term = ADDED == BY_KEY ? staged[key + n * 8 + e] : by_distance[strip * 16 + half * 8 - n * 8 - e];
    score = fmaf(score, problem.scale, term);
  }
  if constexpr ((ADDED & BY_SCORE) != 0) {
    const bool pairs = problem.pairs && column + S::KEYS <= place.keys;
    const int first = column + key, count = place.keys - first;
#pragma unroll
    for (int i = 0; i < S::STRIPS * 2; ++i) {
      const int query = row + i * 8 + lane / 4, strip = i / 2 * N, half = i % 2;
      if (query >= place.queries) continue;
      const int step = problem.bias[3], mask_step = problem.attn_mask[3];
      const long long at = added.bias + query * problem.bias[2] + first * step;
      const long long mask_at = added.mask + query * problem.attn_mask[2] + first * mask_step;
      if (inputs.bias) add_row<S>(scores, strip, half, inputs.bias + at, step, count, pairs);
      if (problem.mask_kind == FLOAT_MASK)
        add_row<S>(scores, strip, half, static_cast<const T *>(inputs.attn_mask) + mask_at, mask_step, count, pairs);
      if (problem.mask_kind == BOOL_MASK)
        add_row<S>(scores, strip, half, static_cast<const bool *>(inputs.attn_mask) + mask_at, mask_step, count, pairs);
    }
  }
}

template <class S> __device__ __forceinline__ void scale_scores(Scores<S> &scores, float scale) {
#pragma unroll
  for (int i = 0; i < S::STRIPS * S::KEYS / 2; ++i) scores[i / 4][i % 4] *= scale;
}

// Scores of keys beyond the sequence, and of those that causality and window hide, become -inf.
template <class S>
__device__ __forceinline__ void hide(Scores<S> &scores, const Place &place, int row, int column) {
  const int lane = threadIdx.x % WARP, at = column + lane % 4 * 2;
  const int below = row + place.below, above = row + place.above;  // the keys that the warp's first row sees
  if (column >= below + S::WARP_ROWS - 1 && column + S::KEYS <= min(place.keys, above + 1)) return;
  const int end = place.keys - at, first = below + lane / 4 - at, last = above + lane / 4 - at;  // of the thread's row
#pragma unroll
  for (int i = 0; i < S::STRIPS * S::KEYS / 2; ++i) {
    const int key = i / 4 % (S::KEYS / 8) * 8 + i % 2, query = i / (S::KEYS / 2) * 16 + i / 2 % 2 * 8;
    if (key >= end || key - query < first || key - query > last) scores[i / 4][i % 4] = -INFINITY;
  }
}

// Converts scores to exponentials relative to the rows' new peaks, and rescales the sums relative to the old peaks.
// Exponentials are powers of two (one instruction): exp(unit x) = 2^(unit log2(e) x), `log2_unit` = unit log2(e).
template <class S>
__device__ __forceinline__ void softmax_step(Scores<S> &scores, RowState<S> &state, Output<S> &output,
                                             float log2_unit) {
  constexpr int N = S::KEYS / 8;
#pragma unroll
  for (int strip = 0; strip < S::STRIPS; ++strip)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = state.peak[strip][half];
#pragma unroll
      for (int n = 0; n < N; ++n)
        peak = fmaxf(peak, fmaxf(scores[strip * N + n][half * 2], scores[strip * N + n][half * 2 + 1]));
      peak = warp_reduce<Max, 4>(peak);
      // Masks of -3e38 (the lowest finite bfloat16) would overflow when multiplied by log2(e). Numbers that large are
      // equal or differ too much for exp: any factor that keeps equal numbers equal is right.
      const float factor = fabsf(peak) > 1e38f ? 1.f : log2_unit;
      const float origin = peak == -INFINITY ? 0.f : peak;  // no key seen yet: avoids -inf + inf
      const float base = origin * factor;
      const float shrink = exp2f((state.peak[strip][half] - origin) * factor);  // exactly 1 if the peak stays
      float total = 0.f;
#pragma unroll
      for (int n = 0; n < N * 2; ++n) {
        float &score = scores[strip * N + n / 2][half * 2 + n % 2];
        score = exp2f(fmaf(score, factor, -base));
        total += score;
      }
      state.peak[strip][half] = peak;
      state.total[strip][half] = fmaf(state.total[strip][half], shrink, total);
#pragma unroll
      for (int n = 0; n < S::D / 8 * 2; ++n) output[strip][n / 2][half * 2 + n % 2] *= shrink;
    }
}

// Rounds one of the thread's two rows of a strip, times `factor`, into row `row` of `tile`, from chunk `first` on.
template <class T, class S, int COLUMNS>
__device__ __forceinline__ void put_row(T *tile, const float (&strip)[COLUMNS][4], int half, float factor, int row,
                                        int first = 0) {
#pragma unroll
  for (int n = 0; n < COLUMNS; ++n)
    *reinterpret_cast<unsigned *>(chunk_of<S::PITCH>(tile, row, first + n) + threadIdx.x % 4 * 2) =
        pack<T>(strip[n][half * 2] * factor, strip[n][half * 2 + 1] * factor);
}

// Divides by the sums and rounds into the warp's rows of `tile`; writes lse, which `unit` scales to natural units.
template <class T, class S>
__device__ __forceinline__ void finish_rows(T *tile, float2 *lse, const Output<S> &output, const RowState<S> &state,
                                            float unit, int warp_row, int rows) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int strip = 0; strip < S::STRIPS; ++strip)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = warp_reduce<Sum, 4>(state.total[strip][half]);
      const float inverse = total == 0.f ? 0.f : 1.f / total;  // a row that sees no key is zero; NaN stays NaN
      const int row = strip * 16 + half * 8 + lane / 4;
      put_row<T, S>(tile, output[strip], half, inverse, warp_row + row);
      if (lane % 4 == 0 && row < rows)
        lse[row] = highest_and_log(state.peak[strip][half] * unit, total);
    }
}

// Copies the first `rows` of the warp's rows from shared memory to `global`.
template <class T, class S>
__device__ __forceinline__ void store_rows(T *global, long long stride, T *tile, int warp_row, int rows, int head_dim) {
#pragma unroll 1
  for (int index = threadIdx.x % WARP; index < S::WARP_ROWS * S::CHUNKS; index += WARP) {
    const int row = index / S::CHUNKS, column = index % S::CHUNKS * 8;
    if (row >= rows || column >= head_dim) continue;
    float values[8];
    to_floats<T>(values, *reinterpret_cast<const uint4 *>(chunk_of<S::PITCH>(tile, warp_row + row, column / 8)));
    store_vector(global + row * stride, column, head_dim, values);
  }
}

// The work of a block; `terms`: see NoTerms.
template <class T, class S, int ADDED, class Terms>
__device__ __forceinline__ void attend(T *output, float2 *lse, Inputs<T> inputs, const Problem &problem, Terms terms) {
  const bool packed = inputs.cu_seqlens;
  const Place place = find_place(problem, inputs, S::ROWS);
  if (place.first >= place.queries) return;
  DYNAMIC_SHARED(shared);
  T *queries = reinterpret_cast<T *>(shared);
  T *keys = queries + S::ROWS * S::PITCH * 8, *values = keys + S::KEYS * S::PITCH * 8;
  enter(inputs, problem, place);
  auto fetch_keys = [&](int first) {
    load_rows<S, S::KEYS>(keys, inputs.key, problem.key, first, place.keys, problem.head_dim);
    terms.fetch(first);
    cp_async_commit();
  };
  auto fetch_values = [&](int first) {
    load_rows<S, S::KEYS>(values, inputs.value, problem.value, first, place.keys, problem.head_dim);
    cp_async_commit();
  };

  // Rarely used values wait in shared memory: the output takes most of the registers. The loop begins with a
  // barrier.
  SHARED_ARRAY(AddedScores, added, 1);
  SHARED_ARRAY(Place, later, 1);
  constexpr int ROOM = Stage<S, ADDED>::ROOM;
  SHARED_ARRAY(float, staged, ROOM);
  if (threadIdx.x == 0) added[0] = find_added_scores(problem, place), later[0] = place;
  // Without biases and mask the exponential uses the raw products; a negative scale would reverse their order.
  const bool raw = ADDED == NOTHING && problem.scale > 0.f;
  const float unit = raw ? problem.scale : 1.f;
  const int warp_row = threadIdx.x / WARP * S::WARP_ROWS, row = place.first + warp_row;
  const int begin = place.first_key(S::KEYS), end = place.end_key(S::ROWS);

  Queries<S> held;
  Output<S> d = {};
  RowState<S> state;
#pragma unroll
  for (int i = 0; i < S::STRIPS * 2; ++i) state.peak[i / 2][i % 2] = -INFINITY, state.total[i / 2][i % 2] = 0.f;

  load_rows<S, S::ROWS>(queries, inputs.query, problem.query, place.first, place.queries, problem.head_dim);
  terms.begin(place, queries, values + S::KEYS * S::PITCH * 8);
  if (begin < end) {
    fetch_keys(begin);
    fetch_values(begin);
  }
#pragma unroll 1
  for (int column = begin; column < end; column += S::KEYS) {
    if (column == begin) cp_async_wait<1>();
    else cp_async_wait<0>();
    __syncthreads();  // the keys (and at first the queries) have arrived; all threads are done with the previous values
    if (column > begin) fetch_values(column);
    // Warps without a row, and those that see none of these keys, only help with the copies.
    const int bottom = row + later[0].below, top = row + S::WARP_ROWS - 1 + later[0].above;
    const bool idle = S::D <= 64 && (row >= place.queries || column > top || column + S::KEYS <= bottom);
    const bool fresh = column == begin || column <= bottom;
    Scores<S> scores;
    Stage<S, ADDED> stage;
    stage.load(added[0], later[0], column, problem, inputs);
    if (!idle) {
      if constexpr (S::HELD == S::D / 16) {
        if (fresh)
#pragma unroll
          for (int step = 0; step < S::HELD; ++step) load_queries<T, S>(held[step], queries, warp_row, step);
      }
      multiply_keys<T, S>(scores, held, queries, keys, warp_row);
      terms.add(scores, keys, column, fresh);
    }
    stage.put(staged);
    cp_async_wait<0>();
    __syncthreads();  // the values have arrived; all threads are done with the keys
    if (column + S::KEYS < end) fetch_keys(column + S::KEYS);
    if (!idle) {
      if constexpr (ADDED != NOTHING)
        add_scores<T, S, ADDED>(scores, staged, added[0], problem, inputs, later[0], row, warp_row, column);
      else if (!raw) scale_scores<S>(scores, problem.scale);
      hide<S>(scores, later[0], row, column);
      softmax_step<S>(scores, state, d, unit * LOG2_E);
      multiply_values<T, S>(d, scores, values);
    }
  }
  cp_async_commit();  // without keys, nothing has committed the copies of the queries
  cp_async_wait<0>();
  __syncthreads();  // the queries have been copied even then
  const int last_row = later[0].first + warp_row, rows = later[0].queries - last_row;
  finish_rows<T, S>(queries, lse + lse_begin(problem, later[0]) + last_row, d, state, unit, warp_row, rows);
  __syncwarp();
  const long long stride = output_stride(problem, packed);
  output += output_begin(problem, later[0], packed) + last_row * stride;
  store_rows<T, S>(output, stride, queries, warp_row, rows, problem.head_dim);
}
