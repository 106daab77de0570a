// The blocks of a layer: POD parameters (weights and constants, nothing of a step) that every backend understands.
// A model's forward is a list of these, built once at boot. kernels/reference defines what each block computes, with
// small readable ops; backends fuse them their own way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/moe_block.h"
#include "kernels/weight.h"

namespace tailrace {

// NeoX rotation of the first rotary_dim dims of a head, pairs (i, i + rotary_dim / 2).
struct Rope {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  int rotary_dim = 0;
  float scale = 1.0f;               // multiplies cos and sin (YaRN's attention factor)
  int id = 0;                       // blocks with equal ids share one table of cos and sin in a step
};

// x = scale * table[token]                                                    -> residual [tokens, hidden] fp32
struct EmbedBlock {
  Weight table;  // [vocab, hidden]
  float scale = 1.0f;
};

// q, k, v = W norm(x), or v = k where W_v has no rows (Gemma 4's full layers); q, k = rope(headnorm(q), headnorm(k));
// v = headnorm(v); k, v written to the KV pool of `group` at `layer`
struct AttnInBlock {
  Norm norm;
  Weight q, k, v;
  Weight gate;          // [q_heads * head_dim, hidden], of norm(x): kept for attn_out; 0 rows: none
  Norm q_norm, k_norm, v_norm;  // over head_dim, or null
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

// x = (x + post_norm(Wd (act(Wg norm(x)) * Wu norm(x)))) * out_scale
struct MlpBlock {
  Norm norm;
  Weight gate, up, down;
  Activation activation = Activation::kSilu;
  Norm post_norm;  // null: none
  const float* out_scale = nullptr;  // [1], or null: 1
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

template <typename Block>
bool has_block(const BlockList& blocks) {
  const auto is = [](const LayerBlock& block) { return std::holds_alternative<Block>(block); };
  return std::any_of(blocks.begin(), blocks.end(), is);
}

}  // namespace tailrace
