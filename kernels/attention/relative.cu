// The kernels of attention with terms of relative position and segments added to the scores.
#include "relative_fp32.cuh"
#include "relative_probs.cuh"
#include "relative_tensor_cores.cuh"

template <class T, int D>
__global__ void __launch_bounds__(RelativeTiling<D>::THREADS, D <= 64 ? 3 : 1)
relative_attention_forward(T *output, float2 *lse, const T *query, const T *key, const T *value,
                           const T *query_for_position, const T *position_key, const T *position_query,
                           const T *segment_scores, const int *distance_rows, const int *segment_ids,
                           const int *segment_ids_k, const int *cu_seqlens, const int *cu_seqlens_k,
                           const void *attn_mask, const Problem problem, const Relative relative) {
  using S = RelativeTiling<D>;
  const RelativeInputs<T> inputs{query_for_position, position_key, position_query, segment_scores,
                                 distance_rows, segment_ids, segment_ids_k};
  attend<T, S>(output, lse, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, (const T *)nullptr, problem,
               RelativeTerms<T, S>(inputs, relative, problem.head_dim));
}

template <int D>
__global__ void __launch_bounds__(128, 1)
relative_attention_forward_fp32(float *output, float2 *lse, const float *query, const float *key, const float *value,
                                const float *query_for_position, const float *position_key,
                                const float *position_query, const float *segment_scores, const int *distance_rows,
                                const int *segment_ids, const int *segment_ids_k, const int *cu_seqlens,
                                const int *cu_seqlens_k, const void *attn_mask, const Problem problem,
                                const Relative relative) {
  using S = RelativeFp32Tiling<D>;
  const RelativeInputs<float> inputs{query_for_position, position_key, position_query, segment_scores,
                                     distance_rows, segment_ids, segment_ids_k};
  attend_fp32<S>(output, lse, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, (const float *)nullptr, problem,
                 RelativeFp32Terms<S>(inputs, relative, problem.head_dim));
}

template <class T>
__global__ void __launch_bounds__(256, 1)
relative_attention_probs(T *probs, const float2 *lse, const T *query, const T *key, const T *query_for_position,
                         const T *position_key, const T *position_query, const T *segment_scores,
                         const int *distance_rows, const int *segment_ids, const int *segment_ids_k,
                         const int *cu_seqlens, const int *cu_seqlens_k, const void *attn_mask, const Problem problem,
                         const Relative relative, int longest_q, int longest_k) {
  SHARED_ARRAY(float, positions, 32 * RelativeProbsTerms<T>::PITCH);
  SHARED_ARRAY(float, key_band, RelativeProbsTerms<T>::BAND * RelativeProbsTerms<T>::PITCH);
  SHARED_ARRAY(float, query_band, RelativeProbsTerms<T>::BAND * RelativeProbsTerms<T>::PITCH);
  const RelativeInputs<T> inputs{query_for_position, position_key, position_query, segment_scores,
                                 distance_rows, segment_ids, segment_ids_k};
  write_probs(probs, lse, query, key, cu_seqlens, cu_seqlens_k, attn_mask, (const T *)nullptr, problem, longest_q,
              longest_k,
              RelativeProbsTerms<T>{inputs, relative, problem.head_dim, 0, 0, 0, 0, positions, key_band, query_band,
                                    nullptr});
}
