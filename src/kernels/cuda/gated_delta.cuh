// What the two forms of the gated delta rule share.
#pragma once

#include "kernels/blocks.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/vector_math.cuh"

namespace tailrace::cuda {

inline constexpr int kDeltaSlice = 32;  // columns of a state that a CTA holds

__device__ __forceinline__ int channels_of(const DeltaParams& p) {
  return (2 * p.k_heads + p.v_heads) * p.dim;
}
__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }
__device__ __forceinline__ float softplus(float v) { return v > 20.0f ? v : log1pf(__expf(v)); }

// g of a v-head, and beta.
__device__ __forceinline__ float delta_decay(const DeltaParams& p, float a, int v_head) {
  return p.decay[v_head] * softplus(a + p.dt_bias[v_head]);
}
__device__ __forceinline__ float delta_beta(float b) { return 1.0f / (1.0f + __expf(-b)); }
__device__ __forceinline__ float projected_a(const DeltaParams& p, int token, int v_head) {
  return __ldcg(p.ba + (int64_t{2} * token + 1) * p.v_heads + v_head);
}
__device__ __forceinline__ float projected_b(const DeltaParams& p, int token, int v_head) {
  return __ldcg(p.ba + int64_t{2} * token * p.v_heads + v_head);
}

// state_source and state_target (batch.h).
__device__ __forceinline__ int64_t source_slot(const DeltaParams& p, const BatchRow& row) {
  return row.state_from > 0 ? int64_t{p.states.first_checkpoint} + row.state_from - 1 : row.slot;
}
__device__ __forceinline__ int64_t target_slot(const DeltaParams& p, const BatchRow& row) {
  return row.state_save > 0 ? int64_t{p.states.first_checkpoint} + row.state_save - 1 : -1;
}

// The layer's part of a slot: S [v_heads][dim][dim], inputs [kDeltaInputs][channels].
__device__ __forceinline__ float* delta_state(const DeltaParams& p, int64_t slot) {
  return p.states.recurrent + slot * p.states.recurrent_stride +
         int64_t{p.layer} * p.v_heads * p.dim * p.dim;
}
__device__ __forceinline__ float* delta_inputs(const DeltaParams& p, int64_t slot) {
  return p.states.conv + slot * p.states.conv_stride +
         int64_t{p.layer} * kDeltaInputs * channels_of(p);
}
__device__ __forceinline__ int64_t input_at(const DeltaParams& p, int position) {
  return int64_t{position % kDeltaInputs} * channels_of(p);
}

// The last inputs of a row that ends at `end`, of one channel, into its own slot and the checkpoint
// it saves to. `fresh` gives those of positions from `start` on.
template <typename Fresh>
__device__ __forceinline__ void keep_inputs(const DeltaParams& p, const BatchRow& row, int channel,
                                            int start, int end, const Fresh& fresh) {
  const int64_t from = source_slot(p, row), to = target_slot(p, row);
#pragma unroll
  for (int back = 1; back < kDeltaInputs; ++back) {
    const int position = end - back;
    if (position < 0 || (position < start && from == row.slot && to < 0)) continue;
    const int64_t at = input_at(p, position) + channel;
    const float v = position >= start ? fresh(position) : __ldcg(delta_inputs(p, from) + at);
    delta_inputs(p, row.slot)[at] = v;
    if (to >= 0) delta_inputs(p, to)[at] = v;
  }
}

// Calls f.template operator()<D>() for the heads' size (delta_dim_served).
template <typename F>
cudaError_t by_delta_dim(int dim, const F& f) {
  switch (dim) {
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    default:
      return f.template operator()<128>();
  }
}

}  // namespace tailrace::cuda
