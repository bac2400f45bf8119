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
