// The forward kernels of attention: float16 and bfloat16 on tensor cores, float32 by FMA, probabilities on request.
#include "fp32.cuh"
#include "probs.cuh"
#include "tensor_cores.cuh"

// The bounds set the number of blocks per multiprocessor; without them ptxas would spill.
template <class T, int D, int STRIPS, int ADDED>
__global__ void __launch_bounds__(128, STRIPS == 1 && D <= 64 ? 3 : 1)
attention_forward(T *output, float2 *lse, const T *query, const T *key, const T *value, const int *cu_seqlens,
                  const int *cu_seqlens_k, const void *attn_mask, const T *bias, const T *position_bias,
                  const int *distance_rows, const Problem problem) {
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  attend<T, Tiling<D, STRIPS>, ADDED>(output, lse, inputs, problem, NoTerms());
}

template <int D, int ADDED>
__global__ void __launch_bounds__(128, 1)
attention_forward_fp32(float *output, float2 *lse, const float *query, const float *key, const float *value,
                       const int *cu_seqlens, const int *cu_seqlens_k, const void *attn_mask, const float *bias,
                       const float *position_bias, const int *distance_rows, const Problem problem) {
  const Inputs<float> inputs{query, key, value, cu_seqlens, cu_seqlens_k,
                             attn_mask, bias, position_bias, distance_rows};
  attend_fp32<Fp32Tiling<D>, ADDED>(output, lse, inputs, problem, NoTerms());
}

template <class T>
__global__ void __launch_bounds__(256)
attention_probs(T *probs, const float2 *lse, const T *query, const T *key, const T *value, const int *cu_seqlens,
                const int *cu_seqlens_k, const void *attn_mask, const T *bias, const T *position_bias,
                const int *distance_rows, const Problem problem, int longest_q, int longest_k) {
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  write_probs(probs, lse, inputs, problem, longest_q, longest_k, NoProbsTerms());
}
