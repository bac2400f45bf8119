// Activation functions over float, as functors: for elementwise kernels and for the epilogues of matrix products.
// NaN gives NaN; at the infinities the formulas are followed in IEEE arithmetic, as reference.py does.

struct Relu {
  static __device__ __forceinline__ float apply(float x) { return x < 0.f ? 0.f : x; }  // fmaxf would swallow NaN
};

struct Tanh {
  static __device__ __forceinline__ float apply(float x) { return tanhf(x); }
};

struct Silu {
  static __device__ __forceinline__ float apply(float x) { return x / (1.f + expf(-x)); }
};

// x Phi(x), exact
struct GeluErf {
  static __device__ __forceinline__ float apply(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
};

struct GeluTanh {
  static __device__ __forceinline__ float apply(float x) {
    const float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);  // sqrt(2 / pi)
    return 0.5f * x * (1.f + tanhf(u));
  }
};

template <class F, int N> __device__ __forceinline__ void apply_all(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = F::apply(values[i]);
}

// By its code in activation_names.py; NO_ACTIVATION changes nothing. A run-time choice: it costs one uniform branch per
// vector, where a template argument would multiply by six what has to be compiled.
template <int N> __device__ __forceinline__ void activate(float (&values)[N], int activation) {
  switch (activation) {
    case 0: apply_all<Relu>(values); break;
    case 1: apply_all<Tanh>(values); break;
    case 2: apply_all<Silu>(values); break;
    case 3: apply_all<GeluErf>(values); break;
    case 4: apply_all<GeluTanh>(values); break;
  }
}

// ---- derivatives ------------------------------------------------------------------------------------------------

__device__ __forceinline__ float derivative_of_relu(float x) { return x != x ? x : x > 0.f ? 1.f : 0.f; }

__device__ __forceinline__ float derivative_of_tanh(float x) {
  const float y = tanhf(x);
  return 1.f - y * y;
}

__device__ __forceinline__ float derivative_of_silu(float x) {
  const float sigmoid = 1.f / (1.f + expf(-x));
  return sigmoid * (1.f + x * (1.f - sigmoid));
}

__device__ __forceinline__ float derivative_of_gelu(float x) {
  const float density = 0.39894228040143268f * expf(-0.5f * x * x);
  return 0.5f * (1.f + erff(x * 0.70710678118654752f)) + x * density;
}

__device__ __forceinline__ float derivative_of_gelu_tanh(float x) {
  if (fabsf(x) > 40.f) return x > 0.f ? 1.f : 0.f;  // to the last bit; x^2 could overflow into 0 * inf
  const float y = tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x));
  const float inner = 0.79788456080286536f * (1.f + 0.134145f * x * x);
  return 0.5f * (1.f + y) + 0.5f * x * (1.f - y * y) * inner;
}

// By the activation's code, as `activate`.
__device__ __forceinline__ float derivative_of(float x, int activation) {
  switch (activation) {
    case 0: return derivative_of_relu(x);
    case 1: return derivative_of_tanh(x);
    case 2: return derivative_of_silu(x);
    case 3: return derivative_of_gelu(x);
    case 4: return derivative_of_gelu_tanh(x);
  }
  return 1.f;
}
