// Cross entropy of the rows of (rows, classes) logits, with any stride between rows: one read.
#include "rows.cuh"

// lse = (m, log(sum(exp(row - m)))), m the row's peak; loss = lse - row[target], 0 where the target is ignore_index. A target that is neither a
// class nor ignore_index gives NaN: checking the targets beforehand would wait for the GPU.
template <class T, int GROUP, class Target>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>)
    cross_entropy_rows(const T *__restrict__ input, const Target *__restrict__ targets, float *__restrict__ losses,
                       float *__restrict__ lse, long long stride, long long rows, int classes, long long ignore_index) {
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *row = input + index * stride;
  const OnlineSoftmax statistics = softmax_of_row<T, GROUP>(row, classes);
  if (threadIdx.x % GROUP != 0) return;
  const Exponent exponent = statistics.exponent;
  const float shift = exponent.shift, log_total = logf(statistics.total / exponent(exponent.shift));
  const long long target = targets[index];
  lse[2 * index] = shift;
  lse[2 * index + 1] = log_total;
  if (target == ignore_index) losses[index] = 0.f;
  else if (target < 0 || target >= classes) losses[index] = NAN;
  else losses[index] = log_total - (to_float(row[target]) - shift);  // lse - x would lose digits for large logits
}

// grad_input = (softmax(row) - onehot(target)) * grad_loss, zeros where the target is ignore_index, NaN where it is not
// a class. It may overwrite the input: two vectors of a thread are read before the first of them is written, so that
// the second need not wait.
template <class T, int GROUP, class Target>
__global__ void __launch_bounds__(ROW_THREADS<GROUP>)
    cross_entropy_backward_rows(const T *input, const Target *__restrict__ targets,
                                const float *__restrict__ grad_losses, const float *__restrict__ lse, T *grad_input,
                                long long grad_stride, long long stride, long long rows, int classes,
                                long long ignore_index) {
  constexpr int SIZE = VECTOR<T>;
  const long long index = row_of_thread<GROUP>();
  if (index >= rows) return;  // a whole group, which takes part in no barrier
  const T *row = input + index * stride;
  const long long target = targets[index];
  const bool counts = target != ignore_index;
  const float grad = counts && (target < 0 || target >= classes) ? NAN : grad_losses[index];
  const Exponent exponent(lse[2 * index]);
  const float factor = grad * expf(-lse[2 * index + 1]) / exponent(exponent.shift);
  const auto finish = [&](const uint4 &packed, int begin) {
    float values[SIZE];
    to_floats<T>(values, packed);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = counts ? exponent(values[i]) * factor : 0.f;
    if (counts && begin + SIZE > target && begin <= target) {
#pragma unroll
      for (int i = 0; i < SIZE; ++i) values[i] -= begin + i == target ? grad : 0.f;
    }
    store_vector(grad_input + index * grad_stride, begin, classes, values);
  };
  each_vector<T, GROUP, 2>(classes, misalignment(row), [&](int begin) {
    const uint4 packed = load_packed(row, begin, classes, 0.f);
    const uint4 beyond = load_packed(row, begin + GROUP * SIZE, classes, 0.f);
    finish(packed, begin);
    finish(beyond, begin + GROUP * SIZE);
  });
}
