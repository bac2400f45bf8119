// Softmax of the rows of a contiguous (rows, width) array.
#include "rows.cuh"

template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    softmax_rows(const T *__restrict__ input, T *__restrict__ output, long long rows, int width) {
  using Row = RegisterRow<T, GROUP, ITEMS>;
  each_row<GROUP>(rows, [&](long long index, bool) {
    Row row(PackedRow<T, GROUP, ITEMS>(input + index * width, width, -INFINITY));
    float peak = -INFINITY, total = 0.f;
    Row::each([&](int k, int i) { peak = fmaxf(peak, row.values[k][i]); });
    const Exponent exponent(group_reduce<Max, GROUP>(peak));
    Row::each([&](int k, int i) { total += row.values[k][i] = exponent(row.values[k][i]); });
    const float scale = exponent.inverse(group_reduce<Sum, GROUP>(total));
    Row::each([&](int k, int i) { row.values[k][i] *= scale; });
    row.store(output + index * width, width);
    return true;
  });
}

// Rows are read twice; the second time mostly from the caches.
template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>)
    softmax_any_rows(const T *__restrict__ input, T *__restrict__ output, long long rows, int width) {
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *source = input + index * width;
  const OnlineSoftmax statistics = softmax_of_row<T, GROUP>(source, width);
  const Exponent exponent = statistics.exponent;
  const float scale = exponent.inverse(statistics.total);
  each_vector<T, GROUP>(width, misalignment(source), [&](int begin) {
    float values[VECTOR<T>];
    to_floats<T>(values, load_packed(source, begin, width, -INFINITY));
#pragma unroll
    for (int i = 0; i < VECTOR<T>; ++i) values[i] = exponent(values[i]) * scale;
    store_vector(output + index * width, begin, width, values);
  });
}

// grad_input = output * (grad_output - sum(grad_output * output))

template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, ROW_BLOCKS<ITEMS>)
    softmax_backward_rows(const T *__restrict__ grad_output, const T *__restrict__ output, T *__restrict__ grad_input,
                          long long rows, int width) {
  using Packed = PackedRow<T, GROUP, ITEMS>;
  using Row = RegisterRow<T, GROUP, ITEMS>;
  each_row<GROUP>(rows, [&](long long index, bool) {
    const Packed grads(grad_output + index * width, width, 0.f), probs(output + index * width, width, 0.f);
    Row g(grads);
    const Row p(probs);
    float along = 0.f;
    Row::each([&](int k, int i) { along = fmaf(g.values[k][i], p.values[k][i], along); });
    along = group_reduce<Sum, GROUP>(along);
    Row::each([&](int k, int i) { g.values[k][i] = p.values[k][i] * (g.values[k][i] - along); });
    g.store(grad_input + index * width, width);
    return true;
  });
}

// The bounds allow 128 registers per thread; without them, ptxas spills in half precision.
template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    softmax_backward_any_rows(const T *__restrict__ grad_output, const T *__restrict__ output, T *__restrict__ grad_input,
                          long long rows, int width) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *grad = grad_output + index * width, *probs = output + index * width;
  const int offset = misalignment(probs);
  float along = 0.f;
  each_vector<T, GROUP>(width, offset, [&](int begin) {
    float g[SIZE], p[SIZE];
    to_floats<T>(g, load_packed(grad, begin, width, 0.f));
    to_floats<T>(p, load_packed(probs, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) along += g[i] * p[i];
  });
  along = group_reduce<Sum, GROUP>(along);
  each_vector<T, GROUP>(width, offset, [&](int begin) {
    float g[SIZE], p[SIZE];
    to_floats<T>(g, load_packed(grad, begin, width, 0.f));
    to_floats<T>(p, load_packed(probs, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) g[i] = p[i] * (g[i] - along);
    store_vector(grad_input + index * width, begin, width, g);
  });
}
