// What both spellings of a configuration share: bounds, end tokens, Gemma's embedding scale.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace tailrace {

// Bounds, divisibility and lengths of the per-layer lists; both parsers end with it. kDataLoss, naming `source`.
Status check_model_config(const ModelConfig& config, const std::string& source);

// Keeps eos_ids sorted and unique.
void add_eos_ids(const std::vector<int32_t>& ids, ModelConfig* config);

// sqrt(hidden) rounded to bfloat16, as Gemma's own code computes it.
float gemma_embed_scale(int64_t hidden);

}  // namespace tailrace
