// Rotary position embeddings: rotates pairs of elements of each head by the angles of the token's position.
#include "common.cuh"

// The sequence that holds `token`: the last whose offset is not beyond it.
__device__ __forceinline__ int sequence_of(const int *__restrict__ offsets, int sequences, int token) {
  int low = 0, high = sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= token) low = middle;
    else high = middle;
  }
  return low;
}

// A row of the tables: cosines, and sines times `sign`.
struct Angles {
  const float *cos, *sin;
  int count;
  float sign;

  // For COUNT pairs from `begin` on.
  template <int COUNT>
  __device__ __forceinline__ void load(float (&cosines)[COUNT], float (&sines)[COUNT], int begin) const {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
      float c[4], s[4];
      to_floats<float>(c, load_packed(cos, begin + i, count, 0.f));
      to_floats<float>(s, load_packed(sin, begin + i, count, 0.f));
#pragma unroll
      for (int j = 0; j < 4 && i + j < COUNT; ++j) {
        cosines[i + j] = c[j];
        sines[i + j] = s[j] * sign;
      }
    }
  }
};

__device__ __forceinline__ void turn(float &a, float &b, float cos, float sin) {
  const float before = a;
  a = before * cos - b * sin;
  b = before * sin + b * cos;
}

// Pairs (i, half + i): one vector of each.
template <class T>
__device__ __forceinline__ void turn_halves(const T *source, T *target, const Angles &angles, int half, int begin) {
  constexpr int SIZE = VECTOR<T>;
  const uint4 low = load_packed(source, begin, half, 0.f), high = load_packed(source + half, begin, half, 0.f);
  float a[SIZE], b[SIZE], cosines[SIZE], sines[SIZE];
  angles.load(cosines, sines, begin);
  to_floats<T>(a, low);
  to_floats<T>(b, high);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) turn(a[i], b[i], cosines[i], sines[i]);
  store_vector(target, begin, half, a);
  store_vector(target + half, begin, half, b);
}

// Pairs (2 i, 2 i + 1): a vector of them.
template <class T>
__device__ __forceinline__ void turn_neighbours(const T *source, T *target, const Angles &angles, int half, int begin) {
  constexpr int SIZE = VECTOR<T>;
  float values[SIZE], cosines[SIZE / 2], sines[SIZE / 2];
  to_floats<T>(values, load_packed(source, begin, 2 * half, 0.f));
  angles.load(cosines, sines, begin / 2);
#pragma unroll
  for (int i = 0; i < SIZE; i += 2) turn(values[i], values[i + 1], cosines[i / 2], sines[i / 2]);
  store_vector(target, begin, 2 * half, values);
}

// A block for each token; a thread rotates a vector of pairs of one head at a time. Strides are in elements: from one
// token, part and head to the next. Without offsets and positions token t is at position t.
template <class T, bool INTERLEAVED>
__global__ void __launch_bounds__(256)
    rotary_tokens(const T *source, long long source_token, long long source_part, long long source_head, T *target,
           long long target_token, long long target_part, long long target_head, const float *__restrict__ cos,
           const float *__restrict__ sin, const int *__restrict__ offsets, int sequences,
           const long long *__restrict__ positions, long long rows, int half, int parts, int heads, int head_dim,
           float sign) {
  constexpr int SIZE = VECTOR<T>;
  const int token = blockIdx.x;
  long long position = token;
  if (positions != nullptr) position = positions[token];
  else if (offsets != nullptr) position = token - offsets[sequence_of(offsets, sequences, token)];
  // NaN for a position beyond the tables: checking beforehand would wait for the GPU.
  const bool known = position >= 0 && position < rows;
  const Angles angles = {cos + (known ? position * half : 0), sin + (known ? position * half : 0),
                         known ? half : 0, known ? sign : NAN};
  const int turned = INTERLEAVED ? (2 * half + SIZE - 1) / SIZE : (half + SIZE - 1) / SIZE;
  const int rest = source == target ? 0 : (head_dim - 2 * half + SIZE - 1) / SIZE;
  const int units = turned + rest;
  for (int unit = threadIdx.x; unit < parts * heads * units; unit += blockDim.x) {
    const int which = unit % units, head = unit / units % heads, part = unit / units / heads;
    const T *from = source + token * source_token + part * source_part + head * source_head;
    T *to = target + token * target_token + part * target_part + head * target_head;
    if (which >= turned) {
      const int begin = (which - turned) * SIZE;
      float values[SIZE];
      to_floats<T>(values, load_packed(from + 2 * half, begin, head_dim - 2 * half, 0.f));
      store_vector(to + 2 * half, begin, head_dim - 2 * half, values);
    } else if constexpr (INTERLEAVED) {
      turn_neighbours(from, to, angles, half, which * SIZE);
    } else {
      turn_halves(from, to, angles, half, which * SIZE);
    }
  }
}
