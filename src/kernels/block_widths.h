// BlockWidths: the largest extents of a block list, which scratch is sized by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>

#include "base/status.h"
#include "kernels/blocks.h"

namespace tailrace {

struct BlockWidths {
  int64_t hidden = 0;        // residual stream
  int64_t q = 0, qkv = 0;    // values of a token, all heads
  int64_t intermediate = 0;
  int64_t vocab = 0;         // rows of the head
  int64_t head_dim = 0, q_heads = 0, kv_heads = 0, gqa_ratio = 1;
  int64_t max_cols = 0;      // widest input of any weight
  int64_t experts = 0, taken = 0, expert_rows = 0;  // of a mixture and of its tokens; rows of an expert's gate
  int64_t gate = 0;                                 // values of a token's attention gates
  int64_t delta_channels = 0, delta_values = 0, delta_heads = 0;  // of a recurrent layer: q, k and v; v alone; v-heads
};

inline BlockWidths block_widths(const BlockList& blocks) {
  BlockWidths w;
  const auto grow = [](int64_t& at, int64_t value) { at = std::max(at, value); };
  for (const LayerBlock& block : blocks) {
    if (const auto* embed = std::get_if<EmbedBlock>(&block)) {
      grow(w.hidden, embed->table.cols);
    } else if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      grow(w.hidden, in->q.cols);
      grow(w.q, in->q.rows);
      grow(w.qkv, in->q.rows + 2 * in->k.rows);
      grow(w.gate, in->gate.rows);
    } else if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
      grow(w.hidden, delta->qkv.cols);
      grow(w.delta_channels, delta->channels());
      grow(w.delta_values, delta->z.rows);
      grow(w.delta_heads, delta->v_heads);
    } else if (const auto* attention = std::get_if<AttentionBlock>(&block)) {
      grow(w.head_dim, attention->head_dim);
      grow(w.q_heads, attention->q_heads);
      grow(w.kv_heads, attention->kv_heads);
      grow(w.gqa_ratio, attention->q_heads / std::max(1, attention->kv_heads));
    } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
      grow(w.hidden, mlp->gate.cols);
      grow(w.intermediate, mlp->gate.rows);
    } else if (const auto* moe = std::get_if<MoeBlock>(&block)) {
      grow(w.hidden, moe->gate.first.cols);
      grow(w.expert_rows, moe->gate.first.rows);
      grow(w.experts, moe->num_experts());
      grow(w.taken, moe->taken());
      grow(w.intermediate, moe->dense.gate.rows);
    } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
      grow(w.hidden, head->head.cols);
      grow(w.vocab, head->head.rows);
    }
  }
  w.max_cols = std::max({w.hidden, w.q, w.intermediate, w.expert_rows, w.delta_values});
  return w;
}

// Whether the parts of a mixture of experts fit together.
inline Status check_moe(const MoeBlock& moe) {
  const int64_t experts = moe.num_experts(), hidden = moe.router.cols, rows = moe.gate.first.rows;
  if (moe.gate.count != experts || moe.up.count != experts || moe.down.count != experts) {
    return invalid("moe: the router, with a shared expert, and the matrices differ in their number of experts");
  }
  if (moe.top_k <= 0 || moe.top_k > moe.router.rows) {
    return invalid("moe: top_k must be from 1 to the number of experts");
  }
  if (moe.gate.first.cols != hidden || moe.up.first.cols != hidden || moe.up.first.rows != rows ||
      moe.down.first.cols != rows || moe.down.first.rows != hidden) {
    return invalid("moe: the experts' matrices do not fit together");
  }
  const DenseBranch& dense = moe.dense;
  if (dense.share.rows > 1 || (dense.share.rows == 1 && dense.share.cols != hidden)) {
    return invalid("moe: a branch's share is one row of the hidden size");
  }
  if (moe.shared_last() && (moe.experts_post_norm.weight != nullptr || dense.norm.weight != nullptr ||
                            dense.post_norm.weight != nullptr)) {
    return invalid("moe: a shared expert among the others has no norms of its own, nor have they");
  }
  if (!dense.present()) return {};
  if (dense.gate.cols != hidden || dense.up.cols != hidden || dense.up.rows != dense.gate.rows ||
      dense.down.cols != dense.gate.rows || dense.down.rows != hidden) {
    return invalid("moe: the matrices of the branch beside the experts do not fit together");
  }
  if (dense.activation == Activation::kClampedSwiglu) return invalid("moe: only experts have a clamped activation");
  return {};
}

// Whether the parts of a recurrent layer fit together.
inline Status check_gated_delta(const GatedDeltaBlock& delta) {
  if (delta.k_heads <= 0 || delta.v_heads <= 0 || delta.v_heads % delta.k_heads != 0 || delta.k_dim <= 0 ||
      delta.v_dim <= 0 || delta.conv_width < 2) {
    return invalid("gated_delta: v_heads must be a multiple of k_heads, and sizes positive");
  }
  const int64_t values = int64_t{delta.v_heads} * delta.v_dim, hidden = delta.qkv.cols;
  if (delta.qkv.rows != delta.channels() || delta.z.rows != values || delta.b.rows != delta.v_heads ||
      delta.a.rows != delta.v_heads || delta.out.rows != hidden || delta.out.cols != values || delta.z.cols != hidden ||
      delta.b.cols != hidden || delta.a.cols != hidden) {
    return invalid("gated_delta: the matrices do not fit together");
  }
  return {};
}

// What the CPU backends compute: kUnsupported or kInvalidArgument says which block cannot be.
inline Status check_blocks(const BlockList& blocks) {
  for (const LayerBlock& block : blocks) {
    if (const auto* in = std::get_if<AttnInBlock>(&block)) {
      if (in->q.rows != int64_t{in->q_heads} * in->head_dim || in->k.rows != int64_t{in->kv_heads} * in->head_dim ||
          (in->v.rows != in->k.rows && in->v.rows != 0) ||
          (in->gate.rows != 0 && in->gate.rows != in->q.rows)) {
        return invalid("attn_in: q, k, v and the gate must have heads * head_dim rows");
      }
      if (in->rope.rotary_dim < 0 || in->rope.rotary_dim > in->head_dim || in->rope.rotary_dim % 2 != 0) {
        return invalid("attn_in: rotary_dim must be even and at most head_dim");
      }
    }
    if (const auto* moe = std::get_if<MoeBlock>(&block)) {
      if (Status status = check_moe(*moe); !status.ok()) return status;
    }
    if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
      if (Status status = check_gated_delta(*delta); !status.ok()) return status;
    }
    const auto* mlp = std::get_if<MlpBlock>(&block);
    if (mlp != nullptr && mlp->activation == Activation::kClampedSwiglu) {
      return invalid("mlp: only experts have a clamped activation");
    }
    const auto* attention = std::get_if<AttentionBlock>(&block);
    if (attention == nullptr) continue;
    if (attention->head_dim % 16 != 0 || attention->head_dim <= 0 || attention->head_dim > 512) {
      return {StatusCode::kUnsupported, "attention: head_dim " + std::to_string(attention->head_dim) +
                                            " is not a multiple of 16 up to 512"};
    }
    if (attention->kv_heads <= 0 || attention->q_heads % attention->kv_heads != 0) {
      return invalid("attention: q_heads must be a multiple of kv_heads");
    }
  }
  return {};
}

}  // namespace tailrace
