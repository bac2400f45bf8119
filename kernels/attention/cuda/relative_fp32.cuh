// Terms of relative position by ordinary FMA. A thread's scores are 8 rows and 16 columns apart: those of row i and
// column j and of row i + 2 and column j + 1 have the same distance and read the same elements of the bands.
#include "fp32.cuh"
#include "relative_terms.cuh"

template <class S> struct RelativeFp32Terms : RelativeTiles<float, S> {
  using RelativeTiles<float, S>::RelativeTiles;

  __device__ __forceinline__ void add(Fp32Scores<S> &scores, const float *keys, int column, bool) const {
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    if (this->key_band) multiply<8, false>(scores, this->positions, this->key_band, y, x);
    if (this->query_band) multiply<16, true>(scores, keys, this->query_band, y, x);
    if (this->inputs.segment_scores) add_segments(scores, y, column + x);
  }

  // scores[i][j] += (row i or, OF_KEYS, j of `tile`) . (row of `band` of their distance)
  template <int STEP, bool OF_KEYS>
  __device__ __forceinline__ void multiply(Fp32Scores<S> &scores, const float *tile, const float *band, int y,
                                           int x) const {
    constexpr int COUNT = OF_KEYS ? S::C : S::R, LAST = 2 * (S::C - 1);
    const int band_row = y - x + S::KEYS - 1 - 8 * LAST, in_eight = band_row & 7;
    const float *eights[S::R + LAST];  // the rows are 8 apart: their index modulo 8, and so the permutation, is equal
#pragma unroll
    for (int step = 0; step < S::R + LAST; ++step)
      eights[step] = band + (this->in_ring(band_row + 8 * step) - in_eight) * this->ROW;
#pragma unroll 2
    for (int chunk = 0; chunk < S::CHUNKS; ++chunk) {
      float4 vectors[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; ++i) vectors[i] = read_chunk<S::CHUNKS>(tile, (OF_KEYS ? x : y) + STEP * i, chunk);
#pragma unroll
      for (int step = 0; step < S::R + LAST; ++step) {
        const float4 row = read_chunk<S::CHUNKS>(eights[step], in_eight, chunk);
#pragma unroll
        for (int j = 0; j < S::C; ++j) {
          const int i = step - LAST + 2 * j;
          if (i >= 0 && i < S::R) scores[i][j] = dot(vectors[OF_KEYS ? j : i], row, scores[i][j]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_segments(Fp32Scores<S> &scores, int y, int key) const {
#pragma unroll
    for (int i = 0; i < S::R; ++i) {
      const SegmentRow<float> row(this->inputs, this->relative, this->first + y + 8 * i, this->queries);
#pragma unroll
      for (int j = 0; j < S::C; ++j)
        scores[i][j] += row.score(key + 16 * j < this->keys ? this->inputs.segment_ids_k[key + 16 * j] : 0);
    }
  }
};
