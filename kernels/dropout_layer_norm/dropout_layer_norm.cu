// Dropout, residual and layer norm of aligned rows of whole blocks of random bits, in one launch; their gradients.
#include "norms_backward.cuh"
#include "philox.cuh"

// The dropout of rows of a whole number of blocks of 64 columns; each counter has four of these, 16 apart. Neighbouring
// threads share a block: each computes a quarter as many counters as it has elements, and votes of the warp give every
// thread the bits of its own.
struct Dropout {
  Seed seed;
  unsigned threshold;
  float factor;

  template <class Row> __device__ __forceinline__ unsigned draw(long long index, int width) const {
    constexpr int LANES = 64 / Row::SIZE;  // lanes that share a block
    constexpr unsigned ALL = (1u << Row::SIZE) - 1;
    const int lane = threadIdx.x % WARP, member = lane % LANES;
    const int word = member * Row::SIZE / 16, counter = member * Row::SIZE % 16;  // of the thread's first element
    const unsigned long long key = seed.read();
    unsigned kept = 0;
#pragma unroll 1  // fully unrolled, it would take registers that rows of float32 do not leave
    for (int k = 0; k < Row::VECTORS; ++k) {
      const unsigned begin = (unsigned)((index * width + Row::begin(k)) / 64 * PHILOX_COUNTERS);
      unsigned own = 0;
#pragma unroll
      for (int turn = 0; turn < PHILOX_COUNTERS / LANES; ++turn) {
        const uint4 words = philox(begin + turn * LANES + member, 0, key);
        const unsigned first = __ballot_sync(FULL_MASK, words.x >= threshold);
        const unsigned second = __ballot_sync(FULL_MASK, words.y >= threshold);
        const unsigned third = __ballot_sync(FULL_MASK, words.z >= threshold);
        const unsigned fourth = __ballot_sync(FULL_MASK, words.w >= threshold);
        const unsigned votes = word & 2 ? (word & 1 ? fourth : third) : (word & 1 ? second : first);
        if (counter / LANES == turn) own = votes;
      }
      kept |= (own >> (lane - member + counter % LANES) & ALL) << k * Row::SIZE;
    }
    return kept;
  }

  template <class Row> __device__ __forceinline__ void drop(Row &row, unsigned kept) const {
    Row::each([&](int k, int i) {
      row.values[k][i] = kept >> (k * Row::SIZE + i) & 1 ? row.values[k][i] * factor : 0.f;
    });
  }
};

template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    dropout_norm_rows(const T *__restrict__ input, const T *__restrict__ residual, const T *__restrict__ weight,
                      const T *__restrict__ bias, T *__restrict__ output, long long rows, int width, float eps,
                      const long long *__restrict__ seed_at, long long seed, unsigned threshold, float factor) {
  const Dropout dropout{{seed_at, seed}, threshold, factor};
  normalise_rows<T, GROUP, ITEMS>(input, residual, weight, bias, output, rows, width, eps, true, dropout);
}

// kept (rows, width / VECTOR<T>): a bit for each element of a vector: whether it is kept.
template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    dropout_norm_backward_rows(const T *__restrict__ grad_output, const T *__restrict__ input,
                               const T *__restrict__ residual, const T *__restrict__ weight, T *__restrict__ grad_input,
                               T *__restrict__ grad_residual, RowStatistics *__restrict__ statistics,
                               unsigned char *__restrict__ kept, long long rows, int width, float eps,
                               const long long *__restrict__ seed_at, long long seed, unsigned threshold,
                               float factor) {
  const Dropout dropout{{seed_at, seed}, threshold, factor};
  using Row = RegisterRow<T, GROUP, ITEMS>;
  const auto store = [&](long long index, Row &g, const RowStatistics &by, unsigned bits) {
    const long long begin = index * width;
    g.store(grad_residual + begin, width);
    dropout.drop(g, bits);
    g.store(grad_input + begin, width);
#pragma unroll
    for (int k = 0; k < Row::VECTORS; ++k)
      if (Row::inside(k, width)) kept[(begin + Row::begin(k)) / Row::SIZE] = bits >> k * Row::SIZE;
    if (threadIdx.x % GROUP == 0) statistics[index] = by;
  };
  differentiate_rows<T, GROUP, ITEMS>(grad_output, input, residual, weight, rows, width, eps, true, dropout, store);
}

template <class T>
__global__ void __launch_bounds__(SUM_COLUMNS * SUM_LANES)
    dropout_norm_backward_columns(const T *__restrict__ grad_output, const T *__restrict__ input,
                                  const T *__restrict__ residual, const RowStatistics *__restrict__ statistics,
                                  float *__restrict__ sums, long long rows, int width,
                                  const unsigned char *__restrict__ kept, float factor) {
  sum_parameters(grad_output, statistics, sums, rows, width, [&](long long place) {
    const bool stays = kept[place / VECTOR<T>] >> place % VECTOR<T> & 1;
    return (stays ? to_float(input[place]) * factor : 0.f) + to_float(residual[place]);
  });
}
