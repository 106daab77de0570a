// Which tensors a model is made of, by canonical name and shape, and whether a checkpoint has exactly those.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"
#include "weights/checkpoint.h"

namespace tailrace {

struct ModelTensor {
  std::string name;            // canonical
  std::vector<int64_t> shape;  // outermost first
};

// The name of the head's matrix, which is the embedding's where they are tied.
const char* head_tensor(const ModelConfig& config);

// Every parameter of the model but its experts' (expert_tensors.h), embedding first, in the order of their use.
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

// Checks, before anything is allocated, that each parameter is there with its shape. Errors (kDataLoss) name the
// missing or misshapen tensors, those of scales included. Returns the names of tensors that the model does not use, for
// one warning; those that quantised checkpoints carry for other ways of computing are one entry a kind, with the reason.
Expected<std::vector<std::string>> check_model_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace tailrace
