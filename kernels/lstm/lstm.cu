// An LSTM: a block computes one sequence in one direction, token by token; a thread has every blockDim.x-th gate.
#include "common.cuh"

__device__ __forceinline__ float lstm_sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// The first token of a sequence, and how many it has; the offsets are unchecked.
__device__ __forceinline__ int2 lstm_span(const int *offsets, int sequence, int tokens) {
  const int first = min(max(offsets[sequence], 0), tokens);
  return make_int2(first, min(max(offsets[sequence + 1], first), tokens) - first);
}

// `transposed` is the weight of each direction as (hidden, 4 * hidden): threads read neighbouring columns.
template <class T>
__global__ void lstm_forward(const T *__restrict__ input, const T *__restrict__ transposed,
                             const int *__restrict__ offsets, T *__restrict__ output, float *gates, float *cells,
                             int tokens, int hidden) {
  DYNAMIC_SHARED(shared);
  float *state = reinterpret_cast<float *>(shared), *cell = state + hidden;
  const int direction = blockIdx.y, directions = gridDim.y, units = 4 * hidden;
  const int2 span = lstm_span(offsets, blockIdx.x, tokens);
  const T *weight = transposed + direction * (long long)units * hidden;
  for (int k = threadIdx.x; k < hidden; k += blockDim.x) state[k] = cell[k] = 0.f;
  __syncthreads();
  for (int step = 0; step < span.y; ++step) {
    const long long place = (span.x + (direction ? span.y - 1 - step : step)) * (long long)directions + direction;
    for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
      float sum = to_float(input[place * units + unit]);
      for (int k = 0; k < hidden; ++k) sum = fmaf(state[k], to_float(weight[k * (long long)units + unit]), sum);
      gates[place * units + unit] = unit / hidden == 2 ? tanhf(sum) : lstm_sigmoid(sum);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < hidden; k += blockDim.x) {
      const float *gate = gates + place * units + k;
      cell[k] = gate[hidden] * cell[k] + gate[0] * gate[2 * hidden];
      cells[place * hidden + k] = cell[k];
      const T rounded = from_float<T>(gate[3 * hidden] * tanhf(cell[k]));
      output[place * hidden + k] = rounded;
      state[k] = to_float(rounded);
    }
    __syncthreads();
  }
}

template <class T>
__global__ void lstm_backward(const T *__restrict__ grad, const T *__restrict__ weights,
                              const int *__restrict__ offsets, const float *__restrict__ gates,
                              const float *__restrict__ cells, float *grad_gates, int tokens, int hidden) {
  DYNAMIC_SHARED(shared);
  float *of_state = reinterpret_cast<float *>(shared), *of_cell = of_state + hidden;
  const int direction = blockIdx.y, directions = gridDim.y, units = 4 * hidden;
  const int2 span = lstm_span(offsets, blockIdx.x, tokens);
  const T *weight = weights + direction * (long long)units * hidden;
  for (int k = threadIdx.x; k < hidden; k += blockDim.x) of_state[k] = of_cell[k] = 0.f;
  __syncthreads();
  for (int step = span.y - 1; step >= 0; --step) {
    const int token = span.x + (direction ? span.y - 1 - step : step);
    const long long place = token * (long long)directions + direction;
    const long long before = place + (direction ? directions : -directions);
    for (int k = threadIdx.x; k < hidden; k += blockDim.x) {
      const float *gate = gates + place * units + k;
      float *of_gate = grad_gates + place * units + k;
      const float i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
      const float last = step ? cells[before * hidden + k] : 0.f, value = tanhf(cells[place * hidden + k]);
      const float of_output = to_float(grad[place * hidden + k]) + of_state[k];
      const float total = of_output * o * (1.f - value * value) + of_cell[k];
      of_gate[0] = total * g * i * (1.f - i);
      of_gate[hidden] = total * last * f * (1.f - f);
      of_gate[2 * hidden] = total * i * (1.f - g * g);
      of_gate[3 * hidden] = of_output * value * o * (1.f - o);
      of_cell[k] = total * f;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < hidden; k += blockDim.x) {
      float sum = 0.f;
      for (int unit = 0; unit < units; ++unit)
        sum = fmaf(grad_gates[place * units + unit], to_float(weight[unit * (long long)hidden + k]), sum);
      of_state[k] = sum;
    }
    __syncthreads();
  }
}
