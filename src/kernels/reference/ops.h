// The small operations that define what the blocks of kernels/blocks.h compute: one row or one query at a time, sums in
// double. Written to be read and to be trusted, not to be fast.
#pragma once

#include <cstdint>

#include "batch/batch.h"
#include "kernels/blocks.h"

namespace tailrace::reference {

// out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]; a null weight copies. x and out may be the same.
void rms_norm(const Norm& norm, const float* x, int64_t width, float* out);

// out[t, r] = W[r] . x[t] + bias[r] for `tokens` rows of x [tokens, cols]; out rows are out_stride apart. `row` is scratch
// for cols values.
void matmul(const Weight& weight, const float* x, int64_t tokens, float* out, int64_t out_stride, float* row);

// Row `index` of a table, dequantised.
void lookup(const Weight& table, int64_t index, float* out);

// Rotates the pairs (i, i + rotary_dim / 2) of one head by position * inv_freq[i].
void rope(const Rope& rope, int64_t position, float* head);

// Writes one head's vector to the pool, rounded to its format.
void write_kv(const KvGroupView& kv, int64_t layer, int64_t slot, int64_t position, int is_value, int64_t head,
              const float* values);

// Attention of one query head at `position` over the keys it sees, read through the block table: out [head_dim].
void attend(const AttentionBlock& block, const KvGroupView& kv, int64_t slot, int64_t position, int64_t q_head,
            const float* q, float* out);

// The top_k largest of logits [experts], largest first, ties to the lower id, and their softmax: ids, weights [top_k].
void route(const float* logits, int64_t experts, int64_t top_k, int32_t* ids, float* weights);

// One token through a recurrent layer (GatedDeltaBlock). `qkv` [channels] are the products before the convolution; a, b and
// z those of the same token. conv_state [conv_width - 1, channels] and state [v_heads, k_dim, v_dim] move one token on.
// out [v_heads * v_dim]: normed and gated, before the last product.
struct DeltaToken {
  float* qkv;
  const float *z, *b, *a;
};
void gated_delta(const GatedDeltaBlock& block, const DeltaToken& token, float* conv_state, float* state, float* out);

float clamped_swiglu(const ClampedSwiglu& activation, float gate, float up);
float activate(Activation activation, float x);  // kSilu or kGeluTanh
float sigmoid(float x);
float softcap(float cap, float x);  // cap 0: x

}  // namespace tailrace::reference
