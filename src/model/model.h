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
  Format format = Format::kBF16;  // of keys and values: see KvGroupView
};

// Bytes of K and V of one token over the group's layers, as `backend` stores them.
inline size_t kv_bytes_per_token(const KvGroupSpec& group, const Backend& backend) {
  return size_t{2} * format_traits(group.format).block_bytes * group.num_layers * group.kv_heads *
         backend.stored_head_dim(group.head_dim);
}

// What the recurrent layers (GatedDeltaBlock) remember of a row, fp32; no layers: none.
struct StateSpec {
  int32_t num_layers = 0;
  int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  int32_t conv_inputs = 0;  // that a layer keeps: Backend::stored_conv_inputs

  int64_t recurrent_values() const { return int64_t{num_layers} * v_heads * k_dim * v_dim; }
  int64_t conv_values() const {
    return int64_t{num_layers} * conv_inputs * (int64_t{2} * k_heads * k_dim + int64_t{v_heads} * v_dim);
  }
  size_t bytes() const { return num_layers == 0 ? 0 : sizeof(float) * (recurrent_values() + conv_values()); }
};

// Where a layer's KV lies, or a recurrent layer's state (group -1).
struct KvPlace {
  int group = 0;
  int layer = 0;  // within the group, or among the recurrent layers
};

struct Model {
  ModelConfig config;
  std::vector<KvGroupSpec> groups;   // full group first, then windows in order of appearance
  std::vector<KvPlace> kv_of_layer;  // [layers]
  StateSpec states;
  BlockList blocks;                  // the forward of one step
};

// Describes the model and claims its weights through `loader`; loader.status() says whether every tensor could be had.
Expected<Model> build_model(const ModelConfig& config, WeightLoader& loader);

// The architectures. Each returns the blocks of a step, in order.
BlockList llama_forward(const Model& model, WeightLoader& loader);   // all but these:
BlockList gemma3_forward(const Model& model, WeightLoader& loader);
BlockList gemma4_forward(const Model& model, WeightLoader& loader);
BlockList qwen35_forward(const Model& model, WeightLoader& loader);

}  // namespace tailrace
