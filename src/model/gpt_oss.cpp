// gpt-oss: x += attn(norm(x)); x += moe(norm(x)). Layers with a window of 128 keys and full ones take turns; every
// query head has a sink; YaRN; biases on all projections, on the router and on the experts.
#include "model/layers.h"

namespace tailrace {

BlockList gpt_oss_forward(const Model& model, WeightLoader& loader) {
  DecoderLayers layers(model, loader);
  BlockList blocks;
  blocks.push_back(layers.embed());
  for (int layer = 0; layer < model.config.layers; ++layer) {
    blocks.push_back(layers.attn_in(layer));
    blocks.push_back(layers.attention(layer));
    blocks.push_back(layers.attn_out(layer));
    blocks.push_back(layers.moe(layer, "post_attention_layernorm"));
  }
  blocks.push_back(layers.head());
  return blocks;
}

}  // namespace tailrace
