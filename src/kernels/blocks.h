// The blocks of a layer: POD parameters (weights and constants, nothing of a step) that every backend understands.
// A model's forward is a list of these, built once at boot. kernels/reference defines what each block computes, with
// small readable ops; backends fuse them their own way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/format.h"

namespace tailrace {

// y = W x + bias; W is the packed values, times their scales where there are any. Values are laid out by the backend that
// packed them (see Backend::pack); scales and bias are not.
struct Weight {
  Format format = Format::kF32;
  int64_t rows = 0;              // outputs
  int64_t cols = 0;              // inputs (K)
  const void* data = nullptr;    // packed
  const float* bias = nullptr;   // [rows] or null
  const float* scale = nullptr;  // [rows, ceil(cols / scale_cols)], or null: 1
  int64_t scale_cols = 0;        // columns that a scale covers: cols (one scale per row) or 128; 0 without scales
};

// y = x * rsqrt(mean(x^2) + eps) * weight; a "+1" of the architecture is already in `weight`.
struct Norm {
  const float* weight = nullptr;  // [width] fp32, or null for no norm
  float eps = 1e-5f;
};

// NeoX rotation of the first rotary_dim dims of a head, pairs (i, i + rotary_dim / 2).
struct Rope {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  int rotary_dim = 0;
  float scale = 1.0f;               // multiplies cos and sin (YaRN's attention factor)
  int id = 0;                       // blocks with equal ids share one table of cos and sin in a step
};

enum class Activation : uint8_t { kSilu, kGeluTanh };

// x = scale * table[token]                                                    -> residual [tokens, hidden] fp32
struct EmbedBlock {
  Weight table;  // [vocab, hidden]
  float scale = 1.0f;
};

// q, k, v = W norm(x); q, k = rope(headnorm(q), headnorm(k)); k, v written to the KV pool of `group` at `layer`
struct AttnInBlock {
  Norm norm;
  Weight q, k, v;
  Weight gate;          // [q_heads * head_dim, hidden], of norm(x): kept for attn_out; 0 rows: none
  Norm q_norm, k_norm;  // over head_dim, or null
  Rope rope;
  int q_heads = 0, kv_heads = 0, head_dim = 0;
  int group = 0;        // KV layer group
  int layer = 0;        // index of the layer within its group
};

// o = softmax(scale * q k^T + mask) v; key j is visible to query i iff 0 <= i - j (< window where window > 0)
struct AttentionBlock {
  int q_heads = 0, kv_heads = 0, head_dim = 0;
  int group = 0, layer = 0;
  int window = 0;                  // 0: full; counts the query itself
  float scale = 1.0f;
  float softcap = 0.0f;            // 0: none; else softcap * tanh(s / softcap)
  const float* sinks = nullptr;    // [q_heads] or null: joins the softmax denominator only, unscaled
};

// x += post_norm(Wo o), or with gates post_norm(Wo (o * sigmoid(gate))): those of the attn_in before.
struct AttnOutBlock {
  Weight o;
  Norm post_norm;  // null: none
  bool gated = false;
};

// Linear attention by the gated delta rule (Qwen3.5): what a layer remembers of a row is one matrix S [k_dim, v_dim] a
// v-head, and the last conv_width - 1 inputs of its convolution (batch.h: StatePoolView). For each token in turn, with
// n = norm(x), v-head h and its k-head h / (v_heads / k_heads):
//   q | k | v = silu(sum over j < conv_width of conv[channel, j] * (Wqkv n)[conv_width - 1 - j tokens before])
//   q = k_dim^-1/2 l2(q), k = l2(k), where l2(u) = u rsqrt(sum u^2 + kL2Eps)
//   g = decay softplus(Wa n + dt_bias), beta = sigmoid(Wb n)
//   S = exp(g) S;  S += k (beta (v - S^T k))^T;  o = S^T q
// x += Wout (out_norm(o) * silu(Wz n)). Before a row's first token S and the inputs are zero.
struct GatedDeltaBlock {
  static constexpr float kL2Eps = 1e-6f;
  Norm norm, out_norm;   // over hidden, and over v_dim
  Weight qkv;            // [channels, hidden]: q and k of all k-heads, v of all v-heads
  Weight z, b, a, out;   // [v_heads * v_dim, hidden], [v_heads, hidden] twice, [hidden, v_heads * v_dim]
  const float* conv = nullptr;     // [channels, conv_width] fp32
  const float* decay = nullptr;    // [v_heads] -exp(A_log)
  const float* dt_bias = nullptr;  // [v_heads]
  int k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, conv_width = 0;
  int layer = 0;         // index among the recurrent layers

  int64_t channels() const { return int64_t{2} * k_heads * k_dim + int64_t{v_heads} * v_dim; }
};

// x += post_norm(Wd (act(Wg norm(x)) * Wu norm(x)))
struct MlpBlock {
  Norm norm;
  Weight gate, up, down;
  Activation activation = Activation::kSilu;
  Norm post_norm;  // null: none
};

// One matrix of every expert, all of one shape and format, packed one behind the other.
struct ExpertWeights {
  Weight first;        // expert 0; its bias, where there is one, begins those of all [experts, rows]
  int64_t count = 0;
  int64_t stride = 0;  // bytes from one expert's packed values to the next one's

  Weight of(int64_t expert) const {
    Weight weight = first;
    if (weight.data != nullptr) weight.data = static_cast<const std::byte*>(weight.data) + expert * stride;
    if (weight.bias != nullptr) weight.bias += expert * weight.rows;
    return weight;
  }
};

// min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1): gpt-oss.
struct ClampedSwiglu {
  float alpha = 1.702f;
  float limit = 7.0f;
};

// n = norm(x); r = router n. Chosen are the top_k largest of r, ties to the lower id, each with its share w of a
// softmax over the chosen. x += sum over the chosen e, largest first, of w_e (down_e act(gate_e n, up_e n)).
// Products add biases.
struct MoeBlock {
  Norm norm;
  Weight router;                 // [experts, hidden]
  ExpertWeights gate, up, down;  // [intermediate, hidden] twice, [hidden, intermediate]
  int top_k = 0;
  ClampedSwiglu activation;
};

// logits[row] = softcap(W norm(x[last token of row])) for the rows that sample -> [rows, vocab] fp32
struct HeadBlock {
  Norm norm;
  Weight head;  // [vocab, hidden]
  float softcap = 0.0f;
};

using LayerBlock = std::variant<EmbedBlock, AttnInBlock, AttentionBlock, AttnOutBlock, GatedDeltaBlock, MlpBlock,
                                MoeBlock, HeadBlock>;
using BlockList = std::vector<LayerBlock>;

}  // namespace tailrace
