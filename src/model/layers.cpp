#include "model/layers.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "model/model_tensors.h"

namespace tailrace {

DecoderLayers::DecoderLayers(const Model& model, WeightLoader& loader)
    : model_(model), config_(model.config), loader_(loader) {
  for (size_t i = 0; i < config_.ropes.size(); ++i) {
    const RopeConfig& rope = config_.ropes[i];
    ropes_.push_back(Rope{.inv_freq = loader.constant(rope_inv_freq(rope)),
                          .rotary_dim = rope.rotary_dim,
                          .scale = static_cast<float>(rope.attention_factor),
                          .id = static_cast<int>(i)});
  }
  const int32_t widest = std::max(config_.head_dim, config_.full.head_dim);
  if (config_.v_norm) ones_ = loader.constant(std::vector<float>(static_cast<size_t>(widest), 1.0f));
}

Norm DecoderLayers::norm(const std::string& name) {
  return {.weight = loader_.vector(name, config_.norm_plus_one ? 1.0f : 0.0f), .eps = config_.norm_eps};
}

Weight DecoderLayers::linear(int layer, const std::string& name, bool bias) {
  const std::string base = prefix(layer) + name;
  return loader_.matrix(base + ".weight", bias ? base + ".bias" : "");
}

EmbedBlock DecoderLayers::embed() {
  return {.table = loader_.matrix("model.embed_tokens.weight"), .scale = config_.embed_scale};
}

AttnInBlock DecoderLayers::attn_in(int layer) {
  AttnInBlock block;
  block.norm = norm(prefix(layer) + "input_layernorm.weight");
  if (config_.attention_gate) {
    const std::string name = prefix(layer) + "self_attn.q_proj.weight";
    std::tie(block.q, block.gate) = loader_.halves_of_heads(name, config_.head_dim);
  } else {
    block.q = linear(layer, "self_attn.q_proj", config_.qkv_bias);
  }
  block.k = linear(layer, "self_attn.k_proj", config_.qkv_bias);
  const int32_t window = config_.window[layer];
  const HeadShape heads = config_.heads(window);
  if (window > 0 || !config_.full_keys_are_values) block.v = linear(layer, "self_attn.v_proj", config_.qkv_bias);
  if (config_.qk_norm) {
    block.q_norm = norm(prefix(layer) + "self_attn.q_norm.weight");
    block.k_norm = norm(prefix(layer) + "self_attn.k_norm.weight");
  }
  if (config_.v_norm) block.v_norm = {.weight = ones_, .eps = config_.norm_eps};
  block.rope = ropes_[config_.rope_of_layer[layer]];
  block.q_heads = config_.q_heads;
  block.kv_heads = heads.kv_heads;
  block.head_dim = heads.head_dim;
  block.group = model_.kv_of_layer[layer].group;
  block.layer = model_.kv_of_layer[layer].layer;
  return block;
}

AttentionBlock DecoderLayers::attention(int layer) {
  const HeadShape heads = config_.heads(config_.window[layer]);
  return {.q_heads = config_.q_heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .group = model_.kv_of_layer[layer].group,
          .layer = model_.kv_of_layer[layer].layer,
          .window = config_.window[layer],
          .scale = config_.attention_scale,
          .softcap = config_.attention_softcap,
          .sinks = config_.sinks ? loader_.vector(prefix(layer) + "self_attn.sinks") : nullptr};
}

AttnOutBlock DecoderLayers::attn_out(int layer, const std::string& post_norm) {
  AttnOutBlock block;
  block.o = linear(layer, "self_attn.o_proj", config_.o_bias);
  if (!post_norm.empty()) block.post_norm = norm(prefix(layer) + post_norm + ".weight");
  block.gated = config_.attention_gate;
  return block;
}

GatedDeltaBlock DecoderLayers::gated_delta(int layer) {
  const std::string base = prefix(layer) + "linear_attn.";
  const LinearAttentionConfig& linear = config_.linear;
  GatedDeltaBlock block;
  block.norm = norm(prefix(layer) + "input_layernorm.weight");
  block.out_norm = {.weight = loader_.vector(base + "norm.weight"), .eps = config_.norm_eps};
  block.qkv = loader_.matrix(base + "in_proj_qkv.weight");
  block.z = loader_.matrix(base + "in_proj_z.weight");
  block.b = loader_.matrix(base + "in_proj_b.weight");
  block.a = loader_.matrix(base + "in_proj_a.weight");
  block.out = loader_.matrix(base + "out_proj.weight");
  block.conv = loader_.vector(base + "conv1d.weight");
  block.decay = loader_.mapped_vector(base + "A_log", [](float log) { return -std::exp(log); });
  block.dt_bias = loader_.vector(base + "dt_bias");
  block.k_heads = linear.k_heads, block.v_heads = linear.v_heads;
  block.k_dim = linear.k_dim, block.v_dim = linear.v_dim;
  block.conv_width = linear.conv_width;
  block.layer = model_.kv_of_layer[layer].layer;
  return block;
}

MlpBlock DecoderLayers::mlp(int layer, const std::string& norm_name, const std::string& post_norm) {
  MlpBlock block;
  block.norm = norm(prefix(layer) + norm_name + ".weight");
  block.gate = linear(layer, "mlp.gate_proj", config_.mlp_bias);
  block.up = linear(layer, "mlp.up_proj", config_.mlp_bias);
  block.down = linear(layer, "mlp.down_proj", config_.mlp_bias);
  block.activation = config_.activation;
  if (!post_norm.empty()) block.post_norm = norm(prefix(layer) + post_norm + ".weight");
  if (config_.layer_scalar) block.out_scale = loader_.vector(prefix(layer) + "layer_scalar");
  return block;
}

MoeBlock DecoderLayers::moe(int layer, const std::string& norm_name) {
  MoeBlock block;
  block.norm = norm(prefix(layer) + norm_name + ".weight");
  const std::string router = prefix(layer) + config_.router_name;
  block.router = loader_.matrix(router + ".weight", config_.expert_bias ? router + ".bias" : "", MatrixRole::kRouter);
  const std::string shared = prefix(layer) + "mlp.shared_expert";
  const bool joins = config_.shared_expert && loader_.joins_shared_expert(layer, shared);
  const std::string last = joins ? shared : "";
  block.gate = loader_.experts(layer, ExpertPart::kGate, last);
  block.up = loader_.experts(layer, ExpertPart::kUp, last);
  block.down = loader_.experts(layer, ExpertPart::kDown, last);
  block.top_k = config_.experts_per_token;
  block.activation = config_.architecture == Architecture::kGptOss ? Activation::kClampedSwiglu : config_.activation;
  block.clamped = config_.expert_activation;
  if (!config_.shared_expert) return block;
  block.dense.share = linear(layer, "mlp.shared_expert_gate", false);
  if (joins) return block;
  block.dense.gate = linear(layer, "mlp.shared_expert.gate_proj", false);
  block.dense.up = linear(layer, "mlp.shared_expert.up_proj", false);
  block.dense.down = linear(layer, "mlp.shared_expert.down_proj", false);
  block.dense.activation = config_.activation;
  return block;
}

HeadBlock DecoderLayers::head() {
  return {.norm = norm("model.norm.weight"),
          .head = loader_.matrix(head_tensor(config_)),
          .softcap = config_.final_softcap};
}

}  // namespace tailrace
