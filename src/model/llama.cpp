// Llama, Mistral, Qwen2, Qwen3 and gpt-oss: x += attn(norm(x)); x += mlp(norm(x)). They differ only in switches of
// ModelConfig: biases on q, k, v (Qwen2), norms over q and k heads (Qwen3), windows (Mistral 0.1), rope scaling (Llama 3);
// gpt-oss has windows in every other layer, sinks, YaRN, biases everywhere, and a mixture of experts for the MLP.
#include "model/layers.h"

namespace tailrace {

BlockList llama_forward(const Model& model, WeightLoader& loader) {
  DecoderLayers layers(model, loader);
  BlockList blocks;
  blocks.push_back(layers.embed());
  for (int layer = 0; layer < model.config.layers; ++layer) {
    blocks.push_back(layers.attn_in(layer));
    blocks.push_back(layers.attention(layer));
    blocks.push_back(layers.attn_out(layer));
    if (model.config.experts > 0) {
      blocks.push_back(layers.moe(layer, "post_attention_layernorm"));
    } else {
      blocks.push_back(layers.mlp(layer, "post_attention_layernorm"));
    }
  }
  blocks.push_back(layers.head());
  return blocks;
}

}  // namespace tailrace
