#include "engine/step_ops.h"

#include <algorithm>

#include "engine/step_bytes.h"

namespace tailrace {
namespace {

using Kind = StepOp::Kind;

class Ops {
 public:
  Ops(const Model& model, double rows, double context, std::optional<double> distinct)
      : model_(model), rows_(rows), context_(context), distinct_(distinct) {}

  void add(const EmbedBlock&) {}
  void add(const AttnInBlock& b) {
    products("attention: q|k|v", {&b.q, &b.k, &b.v});
    if (b.gate.rows > 0) products("attention: gate", {&b.gate});
  }
  void add(const AttentionBlock& b) {
    const KvGroupSpec& group = model_.groups[static_cast<size_t>(b.group)];
    const double seen = b.window > 0 ? std::min<double>(context_, b.window) : context_;
    ops_.push_back({b.window > 0 ? "attention: window" : "attention: full", Kind::kAttention,
                    rows_ * seen * 2.0 * format_traits(group.format).block_bytes * group.kv_heads * group.head_dim});
  }
  void add(const AttnOutBlock& b) { products("attention: out", {&b.o}); }
  void add(const GatedDeltaBlock& b) {
    products("linear attention: q|k|v|z", {&b.qkv, &b.z});
    products("linear attention: b|a", {&b.b, &b.a});
    if (b.b.format == b.a.format) ops_.back().joins_next = true;
    ops_.push_back({"linear attention: state", Kind::kState,
                    2 * rows_ * static_cast<double>(model_.states.bytes()) / model_.states.num_layers});
    products("linear attention: out", {&b.out});
  }
  void add(const MlpBlock& b) {
    products("mlp: gate|up", {&b.gate, &b.up});
    products("mlp: down", {&b.down});
  }
  void add(const MoeBlock& b) {
    if (b.dense.present()) {
      products("dense branch: gate|up", {&b.dense.gate, &b.dense.up});
      products("dense branch: down", {&b.dense.down});
    }
    ops_.push_back({"experts: route", Kind::kRoute, weight_bytes(b.router) + weight_bytes(b.dense.share)});
    const StepBytes::Mixture mixture{.experts = static_cast<int32_t>(b.router.rows), .top_k = b.top_k};
    const double taken = distinct_.value_or(StepBytes::distinct_experts(mixture, rows_)) + (b.shared_last() ? 1 : 0);
    ops_.push_back({"experts: gate|up", Kind::kExperts, taken * (weight_bytes(b.gate.first) + weight_bytes(b.up.first))});
    ops_.push_back({"experts: down", Kind::kExperts, taken * weight_bytes(b.down.first)});
  }
  void add(const HeadBlock& b) { products("head", {&b.head}); }

  std::vector<StepOp> take() { return std::move(ops_); }

 private:
  // One op for neighbours of a format, as they are multiplied together.
  void products(const char* label, std::initializer_list<const Weight*> weights) {
    const Weight* before = nullptr;
    for (const Weight* w : weights) {
      if (w->rows == 0) continue;
      if (before == nullptr || before->format != w->format) ops_.push_back({label, Kind::kProduct, 0});
      ops_.back().bytes += weight_bytes(*w);
      before = w;
    }
  }

  const Model& model_;
  const double rows_, context_;
  const std::optional<double> distinct_;
  std::vector<StepOp> ops_;
};

}  // namespace

std::vector<StepOp> step_ops(const Model& model, double rows, double context, std::optional<double> distinct) {
  Ops ops(model, rows, context, distinct);
  for (const LayerBlock& block : model.blocks) std::visit([&](const auto& b) { ops.add(b); }, block);
  return ops.take();
}

}  // namespace tailrace
