// Softmax of the rows of a contiguous (rows, width) array.
#include "rows.cuh"

// The row stays in registers: one read, one write.
template <class T, int GROUP, int ITEMS>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>)
    softmax_rows(const T *__restrict__ input, T *__restrict__ output, long long rows, int width) {
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group: nobody waits for it
  const T *source = input + index * width;
  RegisterRow<T, GROUP, ITEMS> row(width, misalignment(source));
  row.load(source, -INFINITY);
  float peak = -INFINITY;
  row.each([&](int k, int i) { peak = fmaxf(peak, row.values[k][i]); });
  peak = group_reduce<Max, GROUP>(peak);
  const float shift = peak == -INFINITY ? 0.f : peak;  // a row of -inf throughout: -inf - -inf would be NaN
  float total = 0.f;
  row.each([&](int k, int i) { total += row.values[k][i] = expf(row.values[k][i] - shift); });
  total = group_reduce<Sum, GROUP>(total);
  const float scale = total == 0.f ? 0.f : __fdividef(1.f, total);
  row.each([&](int k, int i) { row.values[k][i] *= scale; });
  row.store(output + index * width);
}

// Rows too long for registers are read twice; the second time mostly from the L2 cache.
template <class T, int GROUP>
__global__ void __launch_bounds__(GROUP)
    softmax_long_rows(const T *__restrict__ input, T *__restrict__ output, long long rows, int width) {
  constexpr int SIZE = VECTOR<T>;
  const T *source = input + blockIdx.x * (long long)width;
  T *destination = output + blockIdx.x * (long long)width;
  const int offset = misalignment(source);
  OnlineSoftmax statistics;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float values[SIZE];
    to_floats<T>(values, load_packed(source, begin, width, -INFINITY));
    statistics.add(values);
  });
  statistics.combine<GROUP>();
  const float shift = statistics.shift();
  float scale = statistics.total == 0.f ? 0.f : __fdividef(1.f, statistics.total);
  if (statistics.peak == INFINITY) scale = NAN;  // by the definition; shift() has avoided inf - inf
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float values[SIZE];
    to_floats<T>(values, load_packed(source, begin, width, -INFINITY));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = expf(values[i] - shift) * scale;
    store_vector(destination, begin, width, values);
  });
}

// grad_input = output * (grad_output - sum(grad_output * output)); rows are read twice, mostly from the caches. The
// bounds allow 128 registers a thread; left alone, ptxas spills half precision.
template <class T, int GROUP>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>, 512 / ROW_THREADS<GROUP>)
    softmax_backward_rows(const T *__restrict__ grad_output, const T *__restrict__ output, T *__restrict__ grad_input,
                          long long rows, int width) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group: nobody waits for it
  const T *grad = grad_output + index * width, *probs = output + index * width;
  const int offset = misalignment(probs);
  float along = 0.f;
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float g[SIZE], p[SIZE];
    to_floats<T>(g, load_packed(grad, begin, width, 0.f));
    to_floats<T>(p, load_packed(probs, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) along += g[i] * p[i];
  });
  along = group_reduce<Sum, GROUP>(along);
  each_vector<T, GROUP>(width, offset, [&](long long begin) {
    float g[SIZE], p[SIZE];
    to_floats<T>(g, load_packed(grad, begin, width, 0.f));
    to_floats<T>(p, load_packed(probs, begin, width, 0.f));
#pragma unroll
    for (int i = 0; i < SIZE; ++i) g[i] = p[i] * (g[i] - along);
    store_vector(grad_input + index * width, begin, width, g);
  });
}
