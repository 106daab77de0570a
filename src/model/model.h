// Model: an architecture as a list of layer blocks over KV layer groups, with its weights.
#pragma once

#include <vector>

#include "kernels/blocks.h"
#include "model/model_config.h"
#include "model/weight_loader.h"

namespace tailrace {

// Layers that keep the same tokens share one pool and one block table.
struct KvGroupSpec {
  int32_t window = 0;      // 0: full
  int32_t num_layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

};

// Bytes of K and V of one token over the group's layers, bf16, as `backend` stores them.
inline size_t kv_bytes_per_token(const KvGroupSpec& group, const Backend& backend) {
  return size_t{4} * group.num_layers * group.kv_heads * backend.stored_head_dim(group.head_dim);
}

// Where a layer's KV lies.
struct KvPlace {
  int group = 0;
  int layer = 0;  // within the group
};

struct Model {
  ModelConfig config;
  std::vector<KvGroupSpec> groups;   // full group first, then windows in order of appearance
  std::vector<KvPlace> kv_of_layer;  // [layers]
  BlockList blocks;                  // the forward of one step
};

// Describes the model and claims its weights through `loader`; loader.status() says whether every tensor could be had.
Expected<Model> build_model(const ModelConfig& config, WeightLoader& loader);

// The architectures. Each returns the blocks of a step, in order.
BlockList llama_forward(const Model& model, WeightLoader& loader);   // all but Gemma 3
BlockList gemma3_forward(const Model& model, WeightLoader& loader);

}  // namespace tailrace
