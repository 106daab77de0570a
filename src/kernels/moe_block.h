// MoeBlock: a mixture of experts, with what its architectures put around and beside them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight.h"

namespace tailrace {

// One matrix of every expert, all of one shape and format, packed one behind the other.
struct ExpertWeights {
  Weight first;        // expert 0; its bias and scale, where there are any, begin those of all [experts, rows, ...]
  int64_t count = 0;
  int64_t stride = 0;  // bytes from one expert's packed values to the next one's

  Weight of(int64_t expert) const {
    Weight weight = first;
    if (weight.data != nullptr) weight.data = static_cast<const std::byte*>(weight.data) + expert * stride;
    if (weight.bias != nullptr) weight.bias += expert * weight.rows;
    if (weight.scale != nullptr) weight.scale += expert * weight.rows * weight.scales_per_row();
    return weight;
  }
};

// min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1): gpt-oss.
struct ClampedSwiglu {
  float alpha = 1.702f;
  float limit = 7.0f;
};

// A gated MLP beside a mixture's experts: Gemma 4's dense one, Qwen3.6's shared expert. None where gate has no rows; a
// share is then the last expert's (MoeBlock::shared_last).
struct DenseBranch {
  Norm norm;                // of x; null: the experts' n
  Weight gate, up, down;    // [rows, hidden] twice, [hidden, rows]
  Activation activation = Activation::kSilu;
  Norm post_norm;           // null: none
  Weight share;             // [1, hidden]: the branch counts sigmoid(share n) times; no rows: once

  bool present() const { return gate.rows > 0; }
};

// n = norm(x); r = router n, or router router_norm(x). Chosen are the top_k largest of r, ties to the lower id, each
// with its share w of a softmax over the chosen, times expert_scale. e = experts_post_norm(sum over the chosen e, largest
// first, of w_e (down_e act(gate_e n, up_e n))). d = sigmoid(share n) post_norm(down act(gate m, up m)), m the branch's
// norm of x or n. x = (x + post_norm(e + d)) * out_scale. Products add biases. Where the shared expert lies behind the
// others, as one more matrix of gate, up and down that the router does not know, d = sigmoid(share n) times what that
// expert gives of n.
struct MoeBlock {
  Norm norm;
  Norm router_norm;                     // null: n
  Weight router;                        // [experts, hidden]
  const float* expert_scale = nullptr;  // [experts], or null: 1
  ExpertWeights gate, up, down;         // [intermediate, hidden] twice, [hidden, intermediate]
  int top_k = 0;
  Activation activation = Activation::kClampedSwiglu;
  ClampedSwiglu clamped;
  Norm experts_post_norm;               // null: none
  DenseBranch dense;
  Norm post_norm;                       // null: none
  const float* out_scale = nullptr;     // [1], or null: 1

  // Whether the last expert is the shared one, taken by every token.
  bool shared_last() const { return !dense.present() && dense.share.rows > 0; }
  // Experts that a token takes, and matrices that there are: the shared one's among them.
  int taken() const { return top_k + (shared_last() ? 1 : 0); }
  int64_t num_experts() const { return router.rows + (shared_last() ? 1 : 0); }

  // Whether x += the routed experts' sum is all.
  bool plain() const {
    return !dense.present() && !shared_last() && experts_post_norm.weight == nullptr && post_norm.weight == nullptr &&
           out_scale == nullptr;
  }
};

}  // namespace tailrace
