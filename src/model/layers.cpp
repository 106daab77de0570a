#include "model/layers.h"

#include <algorithm>

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
  block.q = linear(layer, "self_attn.q_proj", config_.qkv_bias);
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
  return {.norm = norm(prefix(layer) + norm_name + ".weight"),
          .router = loader_.matrix(prefix(layer) + "mlp.router.weight", prefix(layer) + "mlp.router.bias",
                                   MatrixRole::kRouter),
          .gate = loader_.experts(layer, ExpertPart::kGate),
          .up = loader_.experts(layer, ExpertPart::kUp),
          .down = loader_.experts(layer, ExpertPart::kDown),
          .top_k = config_.experts_per_token,
          .clamped = config_.expert_activation};
}

HeadBlock DecoderLayers::head() {
  return {.norm = norm("model.norm.weight"),
          .head = loader_.matrix(config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"),
          .softcap = config_.final_softcap};
}

}  // namespace tailrace
