// Activation functions over float, as functors: for elementwise kernels and for the epilogues of matrix products.
// NaN gives NaN; at the infinities the formulas are computed in IEEE arithmetic, as in reference.py.

struct Relu {
  static __device__ __forceinline__ float apply(float x) { return x < 0.f ? 0.f : x; }  // fmaxf would swallow NaN
};

struct Tanh {
  static __device__ __forceinline__ float apply(float x) { return tanhf(x); }
};

struct Silu {
  static __device__ __forceinline__ float apply(float x) { return __fdividef(x, 1.f + exp2f(-1.4426950408889634f * x)); }
};

// x Phi(x), exact
struct GeluErf {
  static __device__ __forceinline__ float apply(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
};

// 1 - Phi(size) to a relative error of 2^-14.9: t 2^(P(t) - size^2 log2(e) / 2), t = 1 / (1 + 0.26 size) and P fitted
// for 0 to 13; 0 beyond. It takes half of erff's instructions; for half precision.
__device__ __forceinline__ float upper_tail(float size) {
  const float t = __fdividef(1.f, fmaf(0.26f, size, 1.f));
  float exponent = fmaf(-0.55331033f, t, 1.06541860f);
  exponent = fmaf(exponent, t, 0.23276526f);
  exponent = fmaf(exponent, t, 1.53179431f);
  exponent = fmaf(exponent, t, -3.27671504f);
  return t * exp2f(fmaf(-0.72134752f * size, size, exponent));
}

struct GeluErfRounded {
  static __device__ __forceinline__ float apply(float x) {
    const float size = fminf(fabsf(x), 16.f);
    return fmaf(-size, upper_tail(size), x < 0.f ? 0.f * x : x);  // NaN for NaN and -inf
  }
};

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static __device__ __forceinline__ float apply(float x) {
    const float doubled = x * fmaf(x * x, -0.10294324f, -2.30220819f);  // -2 u log2(e)
    return __fdividef(x, 1.f + exp2f(doubled));
  }
};

template <class F, int N> __device__ __forceinline__ void apply_all(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = F::apply(values[i]);
}

// By its code in activation_names.py, to be rounded to T; NO_ACTIVATION changes nothing. A run-time choice: it costs one
// uniform branch per vector, where a template argument would mean six times as much code to compile.
template <class T, int N> __device__ __forceinline__ void activate(float (&values)[N], int activation) {
  switch (activation) {
    case 0: apply_all<Relu>(values); break;
    case 1: apply_all<Tanh>(values); break;
    case 2: apply_all<Silu>(values); break;
    case 3:
      if constexpr (sizeof(T) == 2) apply_all<GeluErfRounded>(values);
      else apply_all<GeluErf>(values);
      break;
    case 4: apply_all<GeluTanh>(values); break;
  }
}

// ---- derivatives ------------------------------------------------------------------------------------------------

struct ReluDerivative {
  static __device__ __forceinline__ float apply(float x) { return x <= 0.f ? 0.f : 1.f; }  // 1 at NaN
};

struct TanhDerivative {
  static __device__ __forceinline__ float apply(float x) {
    const float y = tanhf(x);
    return 1.f - y * y;
  }
};

struct SiluDerivative {
  static __device__ __forceinline__ float apply(float x) {
    const float sigmoid = __fdividef(1.f, 1.f + exp2f(-1.4426950408889634f * x));
    return sigmoid * (1.f + x * (1.f - sigmoid));
  }
};

// Phi(x) + x phi(x)
struct GeluErfDerivative {
  static __device__ __forceinline__ float apply(float x) {
    const float density = 0.39894228040143268f * exp2f(-0.72134752f * x * x);
    return 0.5f * (1.f + erff(x * 0.70710678118654752f)) + x * density;
  }
};

struct GeluErfRoundedDerivative {
  static __device__ __forceinline__ float apply(float x) {
    const float size = fminf(fabsf(x), 16.f), tail = upper_tail(size);
    const float density = 0.39894228040143268f * exp2f(-0.72134752f * size * size);
    return fmaf(x, density, x < 0.f ? tail : 1.f - tail);
  }
};

struct GeluTanhDerivative {
  static __device__ __forceinline__ float apply(float x) {
    if (fabsf(x) > 40.f) return x > 0.f ? 1.f : 0.f;  // to the last bit; x^2 could overflow into 0 * inf
    const float sigmoid = __fdividef(1.f, 1.f + exp2f(x * fmaf(x * x, -0.10294324f, -2.30220819f)));  // as GeluTanh
    const float inner = fmaf(x * x, 0.21406451f, 1.59576912f);  // 2 u'
    return fmaf(x * inner, sigmoid * (1.f - sigmoid), sigmoid);
  }
};

// By the activation's code, as in `activate`; 1 without one.
template <class T, int N> __device__ __forceinline__ void differentiate(float (&values)[N], int activation) {
  switch (activation) {
    case 0: apply_all<ReluDerivative>(values); break;
    case 1: apply_all<TanhDerivative>(values); break;
    case 2: apply_all<SiluDerivative>(values); break;
    case 3:
      if constexpr (sizeof(T) == 2) apply_all<GeluErfRoundedDerivative>(values);
      else apply_all<GeluErfDerivative>(values);
      break;
    case 4: apply_all<GeluTanhDerivative>(values); break;
    default:
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = 1.f;
  }
}
