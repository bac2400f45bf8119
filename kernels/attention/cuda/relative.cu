// The kernels of attention with terms of relative position and segments added to the scores.
#include "relative_fp32.cuh"
#include "relative_probs.cuh"
#include "relative_tensor_cores.cuh"

template <class T, int D, int ADDED>
__global__ void __launch_bounds__(RelativeTiling<D>::THREADS, D <= 64 ? 3 : 1)
relative_attention_forward(T *output, float2 *lse, const T *query, const T *key, const T *value, const int *cu_seqlens,
                           const int *cu_seqlens_k, const void *attn_mask, const T *bias, const T *position_bias,
                           const int *distance_rows, const Problem problem, const T *query_for_position,
                           const T *position_key, const T *position_query, const T *segment_scores,
                           const int *segment_ids, const int *segment_ids_k, const Relative relative) {
  using S = RelativeTiling<D>;
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  const RelativeInputs<T> terms{query_for_position, position_key, position_query, segment_scores,
                                distance_rows, segment_ids, segment_ids_k};
  attend<T, S, ADDED>(output, lse, inputs, problem, RelativeTerms<T, S>(terms, relative, problem));
}

template <int D, int ROWS, int KEYS, int ADDED>
__global__ void __launch_bounds__(128, 1)
relative_attention_forward_fp32(float *output, float2 *lse, const float *query, const float *key, const float *value,
                                const int *cu_seqlens, const int *cu_seqlens_k, const void *attn_mask,
                                const float *bias, const float *position_bias, const int *distance_rows,
                                const Problem problem, const float *query_for_position, const float *position_key,
                                const float *position_query, const float *segment_scores, const int *segment_ids,
                                const int *segment_ids_k, const Relative relative) {
  using S = Fp32Tiling<D, ROWS, KEYS>;
  const Inputs<float> inputs{query, key, value, cu_seqlens, cu_seqlens_k,
                             attn_mask, bias, position_bias, distance_rows};
  const RelativeInputs<float> terms{query_for_position, position_key, position_query, segment_scores,
                                    distance_rows, segment_ids, segment_ids_k};
  attend_fp32<S, ADDED>(output, lse, inputs, problem, RelativeFp32Terms<S>(terms, relative, problem));
}

template <class T>
__global__ void __launch_bounds__(256, 1)
relative_attention_probs(T *probs, const float2 *lse, const T *query, const T *key, const T *value,
                         const int *cu_seqlens, const int *cu_seqlens_k, const void *attn_mask, const T *bias,
                         const T *position_bias, const int *distance_rows, const Problem problem,
                         const T *query_for_position, const T *position_key, const T *position_query,
                         const T *segment_scores, const int *segment_ids, const int *segment_ids_k,
                         const Relative relative, int longest_q, int longest_k) {
  using Terms = RelativeProbsTerms<T>;
  SHARED_ARRAY(float, positions, 32 * Terms::PITCH);
  SHARED_ARRAY(float, key_band, Terms::BAND * Terms::PITCH);
  SHARED_ARRAY(float, query_band, Terms::BAND * Terms::PITCH);
  const Inputs<T> inputs{query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, position_bias, distance_rows};
  const RelativeInputs<T> terms{query_for_position, position_key, position_query, segment_scores,
                                distance_rows, segment_ids, segment_ids_k};
  write_probs(probs, lse, inputs, problem, longest_q, longest_k,
              Terms{terms, relative, problem, 0, 0, 0, 0, positions, key_band, query_band, nullptr});
}
