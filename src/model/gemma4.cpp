// Gemma 4: x += norm(attn(norm(x))); x = (x + norm(mlp(norm(x)))) * scalar, windows in most layers, and full ones with
// heads of their own, whose keys double as values. In mixtures the MLP and the experts run side by side, each between
// norms of its own; the router reads a third norm of x, which has no weights but a scale.
#include <cmath>

#include "model/layers.h"

namespace tailrace {
namespace {

MoeBlock mixture(DecoderLayers& layers, const ModelConfig& config, WeightLoader& loader, int layer) {
  const std::string prefix = layers.prefix(layer);
  const auto norm = [&](const char* name) { return layers.norm(prefix + name + ".weight"); };
  const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden)));
  MoeBlock block;
  block.norm = norm("pre_feedforward_layernorm_2");
  block.router_norm = {.weight = loader.vector(prefix + "router.scale", 0.0f, root), .eps = config.norm_eps};
  block.router = loader.matrix(prefix + "router.proj.weight", "", MatrixRole::kRouter);
  block.expert_scale = loader.vector(prefix + "router.per_expert_scale");
  block.gate = loader.experts(layer, ExpertPart::kGate);
  block.up = loader.experts(layer, ExpertPart::kUp);
  block.down = loader.experts(layer, ExpertPart::kDown);
  block.top_k = config.experts_per_token;
  block.activation = config.activation;
  block.experts_post_norm = norm("post_feedforward_layernorm_2");
  block.dense = {.norm = norm("pre_feedforward_layernorm"),
                 .gate = layers.linear(layer, "mlp.gate_proj"),
                 .up = layers.linear(layer, "mlp.up_proj"),
                 .down = layers.linear(layer, "mlp.down_proj"),
                 .activation = config.activation,
                 .post_norm = norm("post_feedforward_layernorm_1")};
  block.post_norm = norm("post_feedforward_layernorm");
  block.out_scale = loader.vector(prefix + "layer_scalar");
  return block;
}

}  // namespace

BlockList gemma4_forward(const Model& model, WeightLoader& loader) {
  DecoderLayers layers(model, loader);
  BlockList blocks;
  blocks.push_back(layers.embed());
  for (int layer = 0; layer < model.config.layers; ++layer) {
    blocks.push_back(layers.attn_in(layer));
    blocks.push_back(layers.attention(layer));
    blocks.push_back(layers.attn_out(layer, "post_attention_layernorm"));
    if (model.config.experts > 0) {
      blocks.push_back(mixture(layers, model.config, loader, layer));
    } else {
      blocks.push_back(layers.mlp(layer, "pre_feedforward_layernorm", "post_feedforward_layernorm"));
    }
  }
  blocks.push_back(layers.head());
  return blocks;
}

}  // namespace tailrace
