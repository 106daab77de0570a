// Gemma 3: x += norm(attn(norm(x))); x += norm(mlp(norm(x))), five sliding-window layers to one full layer, each kind with
// its own rope; embeddings scaled by sqrt(hidden); all norms (1 + w).
#include "model/layers.h"

namespace tailrace {

BlockList gemma3_forward(const Model& model, WeightLoader& loader) {
  DecoderLayers layers(model, loader);
  BlockList blocks;
  blocks.push_back(layers.embed());
  for (int layer = 0; layer < model.config.layers; ++layer) {
    blocks.push_back(layers.attn_in(layer));
    blocks.push_back(layers.attention(layer));
    blocks.push_back(layers.attn_out(layer, "post_attention_layernorm"));
    blocks.push_back(layers.mlp(layer, "pre_feedforward_layernorm", "post_feedforward_layernorm"));
  }
  blocks.push_back(layers.head());
  return blocks;
}

}  // namespace tailrace
