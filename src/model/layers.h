// The pieces that the decoder architectures share: each names its tensors and fills one block.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace tailrace {

class DecoderLayers {
 public:
  DecoderLayers(const Model& model, WeightLoader& loader);

  EmbedBlock embed();
  AttnInBlock attn_in(int layer);
  AttentionBlock attention(int layer);
  AttnOutBlock attn_out(int layer, const std::string& post_norm = "");
  // `norm` and `post_norm` are tensor names within the layer; post_norm empty: none.
  MlpBlock mlp(int layer, const std::string& norm, const std::string& post_norm = "");
  GatedDeltaBlock gated_delta(int layer);
  MoeBlock moe(int layer, const std::string& norm);
  HeadBlock head();

  // The parts that an architecture's own blocks are made of.
  Norm norm(const std::string& name);
  Weight linear(int layer, const std::string& name, bool bias = false);
  std::string prefix(int layer) const { return "model.layers." + std::to_string(layer) + "."; }


 private:
  const Model& model_;
  const ModelConfig& config_;
  WeightLoader& loader_;
  std::vector<Rope> ropes_;
  const float* ones_ = nullptr;  // as long as the widest head: norms without weights
};

}  // namespace tailrace
