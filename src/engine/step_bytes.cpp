#include "engine/step_bytes.h"

#include <algorithm>
#include <cmath>

namespace tailrace {
namespace {

int64_t bytes_of(const Weight& w) {
  if (w.rows == 0) return 0;
  return w.rows * static_cast<int64_t>(stored_row_bytes(w.format, w.cols));
}

void count(const LayerBlock& block, StepBytes& bytes) {
  const auto add = [&](std::initializer_list<const Weight*> weights) {
    for (const Weight* w : weights) bytes.weights += bytes_of(*w);
  };
  if (const auto* in = std::get_if<AttnInBlock>(&block)) {
    add({&in->q, &in->k, &in->v, &in->gate});
  } else if (const auto* out = std::get_if<AttnOutBlock>(&block)) {
    add({&out->o});
  } else if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
    add({&delta->qkv, &delta->z, &delta->b, &delta->a, &delta->out});
  } else if (const auto* mlp = std::get_if<MlpBlock>(&block)) {
    add({&mlp->gate, &mlp->up, &mlp->down});
  } else if (const auto* moe = std::get_if<MoeBlock>(&block)) {
    add({&moe->router, &moe->dense.gate, &moe->dense.up, &moe->dense.down, &moe->dense.share});
    const int64_t expert_bytes = bytes_of(moe->gate.first) + bytes_of(moe->up.first) + bytes_of(moe->down.first);
    if (moe->shared_last()) bytes.weights += expert_bytes;
    bytes.mixtures.push_back({.expert_bytes = expert_bytes,
                              .experts = static_cast<int32_t>(moe->router.rows),
                              .top_k = moe->top_k});
  } else if (const auto* head = std::get_if<HeadBlock>(&block)) {
    add({&head->head});
  }
}

}  // namespace

double weight_bytes(const Weight& weight) { return static_cast<double>(bytes_of(weight)); }

double StepBytes::distinct_experts(const Mixture& mixture, double rows) {
  return mixture.experts *
         (1 - std::pow(1 - static_cast<double>(mixture.top_k) / mixture.experts, rows));
}

double StepBytes::step(double rows, double context, std::optional<double> distinct) const {
  double total = static_cast<double>(weights);
  for (const Mixture& mixture : mixtures)
    total += distinct.value_or(distinct_experts(mixture, rows)) * static_cast<double>(mixture.expert_bytes);
  for (const Kv& group : kv) {
    total += rows * static_cast<double>(group.token_bytes) *
             (group.window > 0 ? std::min<double>(context, group.window) : context);
  }
  return total + 2 * rows * static_cast<double>(state_bytes);
}

StepBytes step_bytes(const Model& model) {
  StepBytes bytes;
  for (const LayerBlock& block : model.blocks) count(block, bytes);
  for (const KvGroupSpec& group : model.groups) {
    bytes.kv.push_back(
        {.token_bytes = int64_t{2} * format_traits(group.format).block_bytes * group.num_layers *
                        group.kv_heads * group.head_dim,
         .window = group.window});
  }
  bytes.state_bytes = static_cast<int64_t>(model.states.bytes());
  return bytes;
}

}  // namespace tailrace
