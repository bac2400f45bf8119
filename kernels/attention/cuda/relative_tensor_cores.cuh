// Terms of relative position on tensor cores.
#include "tensor_cores.cuh"
#include "relative_terms.cuh"

// Head dimensions beyond 64 have smaller tiles, so that both bands fit in 64 KB, the largest block of sm_75.
template <int D> using RelativeTiling = Tiling<D, 1, (D <= 64 ? 4 : 2), (D <= 64 ? 32 : 16)>;

// 16 x 16 scores of a warp have 31 distances: band rows b to b + 30, where b is a multiple of 16. The products of the
// 16 queries (or keys) with 32 rows of a band go through the warp's own part of shared memory, where each score reads
// the product of its distance: column i - j + 15.
template <class T, class S> struct RelativeTerms : RelativeTiles<T, S> {
  static constexpr int N = S::KEYS / 8, PRODUCTS = 16 * 32;
  using Half = float[2][4];  // 16 x 16: products with half of the rows
  Half ahead;                // of the queries with the lower half, which for the next 16 keys is the upper half
  using RelativeTiles<T, S>::RelativeTiles;

  // d = the 16 rows of `a` from a_row on times those of `band` from band_row on, transposed; 16 x 8 of it in each
  // fragment. Rings are multiples of 16 rows: the rows that are loaded at once are contiguous.
  template <int FRAGMENTS>
  __device__ __forceinline__ void multiply(float (&d)[FRAGMENTS][4], const T *a, int a_row, const T *band,
                                           int band_row) const {
    int places[FRAGMENTS / 2];
#pragma unroll
    for (int i = 0; i < FRAGMENTS / 2; ++i) places[i] = this->in_ring(band_row + 16 * i);
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; ++i) d[i / 4][i % 4] = 0.f;
#pragma unroll(S::D <= 64 ? S::D / 16 : 2)
    for (int step = 0; step < S::D / 16; ++step) {
      unsigned rows[4], left[2], right[2];
      load_a<S::PITCH>(rows, a, a_row, step * 2);
#pragma unroll
      for (int i = 0; i < FRAGMENTS; i += 2) {
        load_b<S::PITCH>(left, right, band, places[i / 2], step * 2);
        mma<T>(d[i], rows, left);
        mma<T>(d[i + 1], rows, right);
      }
    }
  }

  // The exclusive-or keeps the pairs that a warp writes at once on different banks.
  static __device__ __forceinline__ int position(int row, int column) { return row * 32 + (column ^ (row & 3) << 3); }

  static __device__ __forceinline__ void put(float *products, const float (*d)[4], int column) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8, at = position(row, column + i / 2 * 8 + lane % 4 * 2);
      *reinterpret_cast<float2 *>(products + at) = make_float2(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
    }
  }

  // Adds to the scores of the 16 keys from fragment `n` on the products of their distances in `lower` and `upper`,
  // products of 16 queries or of these keys.
  template <bool OF_KEYS>
  static __device__ __forceinline__ void distribute(Scores<S> &scores, int n, float *products,
                                                    const float (*lower)[4], const float (*upper)[4]) {
    const int lane = threadIdx.x % WARP;
    put(products, lower, 0);
    put(products, upper, 16);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int i = lane / 4 + e / 2 % 2 * 8, j = e / 4 * 8 + lane % 4 * 2 + e % 2;
      scores[n + e / 4][e % 4] += products[position(OF_KEYS ? j : i, i - j + 15)];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void add(Scores<S> &scores, const T *keys, int column, bool fresh) {
    const int warp = threadIdx.x / WARP, warp_row = warp * 16;
    float *products = reinterpret_cast<float *>(this->room) + warp * PRODUCTS;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      const int band = warp_row + S::KEYS - 16 - n * 8;
      if (this->key_band) {
        Half lower;
        if (fresh && n == 0) multiply(ahead, this->positions, warp_row, this->key_band, band + 16);
        multiply(lower, this->positions, warp_row, this->key_band, band);
        distribute<false>(scores, n, products, lower, ahead);
#pragma unroll
        for (int i = 0; i < 8; ++i) ahead[i / 4][i % 4] = lower[i / 4][i % 4];
      }
      if (this->query_band) {
        float both[4][4];
        multiply(both, keys, n * 8, this->query_band, band);
        distribute<true>(scores, n, products, both, both + 2);
      }
    }
    if (this->inputs.segment_scores) add_segments(scores, warp_row, column);
  }

  __device__ __forceinline__ void add_segments(Scores<S> &scores, int warp_row, int column) const {
    const int lane = threadIdx.x % WARP, query = this->first + warp_row + lane / 4;
    const SegmentRow<T> upper(this->inputs, this->relative, query, this->queries);
    const SegmentRow<T> lower(this->inputs, this->relative, query + 8, this->queries);
#pragma unroll
    for (int i = 0; i < N * 2; ++i) {
      const int key = column + i / 2 * 8 + lane % 4 * 2 + i % 2;
      const int id = key < this->keys ? this->inputs.segment_ids_k[key] : 0;
      scores[i / 2][i % 2] += upper.score(id);
      scores[i / 2][2 + i % 2] += lower.score(id);
    }
  }
};
