#include "model/model_config.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/config_checks.h"
#include "model/config_fields.h"
#include "weights/dequantize.h"

namespace tailrace {
namespace {

// One fault per rule, in words that name the value.
struct Bound {
  const char* name;
  int64_t value, lowest, highest;
};

Status check_ropes(const ModelConfig& config, const std::string& source) {
  const auto bad = [&](const std::string& reason) { return Status(StatusCode::kDataLoss, source + ": " + reason); };
  if (config.ropes.empty() || config.ropes.size() > 2) return bad("needs one or two rotary embeddings");
  for (const RopeConfig& rope : config.ropes) {
    const int head_dim = std::max(config.head_dim, config.full.head_dim);  // that of each layer is looked at below
    if (rope.rotary_dim < 2 || rope.rotary_dim > head_dim || rope.rotary_dim % 2 != 0) {
      return bad("rotates " + std::to_string(rope.rotary_dim) + " dims of heads of " + std::to_string(head_dim));
    }
    if (rope.rotated < 0 || rope.rotated > rope.rotary_dim / 2) return bad("turns more pairs than a head has");
    if (!(rope.theta > 1.0 && rope.theta <= 1e15)) return bad("rope theta is out of range");
    if (!(rope.factor >= 1.0 && rope.factor <= 1e6)) return bad("the rope factor is out of range");
    if (rope.scaling == RopeScaling::kLlama3 && !(rope.high_freq_factor > rope.low_freq_factor)) {
      return bad("rope high_freq_factor is not above low_freq_factor");
    }
    const bool needs_original = rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
    if (needs_original && !(rope.original_context >= 1)) return bad("the rope's original context is missing");
    if (rope.scaling != RopeScaling::kDivisors) continue;
    const bool good = std::all_of(rope.divisors.begin(), rope.divisors.end(),
                                  [](float divisor) { return std::isfinite(divisor) && divisor > 0; });
    if (!good || rope.divisors.size() != static_cast<size_t>(rope.rotary_dim / 2)) {
      return bad("rope_freqs.weight needs " + std::to_string(rope.rotary_dim / 2) + " positive numbers");
    }
  }
  return Status();
}

// generation_config.json may name further end tokens (Llama 3, Gemma 3): the union counts.
Status add_generation_ids(const Checkpoint& checkpoint, ModelConfig* config) {
  if (!checkpoint.generation_config()) return Status();
  ConfigFields fields(*checkpoint.generation_config(), checkpoint.directory() + "/generation_config.json");
  add_eos_ids(fields.ids("eos_token_id", static_cast<int32_t>(config->vocab - 1)), config);
  return fields.status();
}

}  // namespace

const char* architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama: return "llama";
    case Architecture::kMistral: return "mistral";
    case Architecture::kQwen2: return "qwen2";
    case Architecture::kQwen3: return "qwen3";
    case Architecture::kGemma3: return "gemma3";
    case Architecture::kGptOss: return "gpt-oss";
    case Architecture::kGemma4: return "gemma4";
    case Architecture::kQwen35: return "qwen3.5";
    case Architecture::kQwen35Moe: return "qwen3.5-moe";
  }
  return "?";
}

void add_eos_ids(const std::vector<int32_t>& ids, ModelConfig* config) {
  std::vector<int32_t>& all = config->eos_ids;
  all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

float gemma_embed_scale(int64_t hidden) {
  uint32_t bits = std::bit_cast<uint32_t>(std::sqrt(static_cast<float>(hidden)));
  bits += 0x7fff + ((bits >> 16) & 1);  // to nearest, ties to even
  return bfloat16_to_float(static_cast<uint16_t>(bits >> 16));
}

Status check_model_config(const ModelConfig& config, const std::string& source) {
  const auto bad = [&](const std::string& reason) { return Status(StatusCode::kDataLoss, source + ": " + reason); };
  const Bound bounds[] = {
      {"the vocabulary", config.vocab, 1, 1 << 22},        {"the hidden size", config.hidden, 1, 1 << 16},
      {"the number of layers", config.layers, 1, 1000},    {"the number of attention heads", config.q_heads, 1, 1024},
      {"the number of KV heads", config.kv_heads, 1, 1024}, {"the head size", config.head_dim, 2, 1024},
      {"the intermediate size", config.intermediate, 1, 1 << 20}, {"the context", config.context, 1, 1 << 27},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= bound.lowest && bound.value <= bound.highest) continue;
    return bad(std::string(bound.name) + " is " + std::to_string(bound.value) + ", not within " +
               std::to_string(bound.lowest) + ".." + std::to_string(bound.highest));
  }
  if (config.experts < 0 || config.experts > 4096 || config.experts_per_token < (config.experts > 0 ? 1 : 0) ||
      config.experts_per_token > config.experts) {
    return bad(std::to_string(config.experts_per_token) + " of " + std::to_string(config.experts) +
               " experts a token is out of range");
  }
  if (config.experts > 0 && (config.expert_intermediate < 1 || config.expert_intermediate > 1 << 20)) {
    return bad("the experts' intermediate size is out of range");
  }
  if (!(config.expert_activation.limit > 0)) return bad("the limit of the experts' activation is not positive");
  for (const HeadShape& heads : {config.heads(1), config.heads(0)}) {
    if (heads.kv_heads < 1 || heads.head_dim < 2 || heads.head_dim > 1024) {
      return bad("the heads of full layers are out of range");
    }
    if (config.q_heads % heads.kv_heads != 0) {
      return bad(std::to_string(config.q_heads) + " attention heads are no multiple of " +
                 std::to_string(heads.kv_heads) + " KV heads");
    }
    if (heads.head_dim % 2 != 0) return bad("the head size " + std::to_string(heads.head_dim) + " is odd");
  }
  if (!(config.norm_eps > 0 && config.norm_eps < 1)) return bad("the norm epsilon is out of range");
  const bool scale_good = config.attention_scale > 0 && config.attention_scale <= 1e4f;
  if (!scale_good) return bad("the attention scale is out of range");
  if (!(config.attention_softcap >= 0) || !(config.final_softcap >= 0)) return bad("a softcap is negative");
  if (config.window.size() != static_cast<size_t>(config.layers) ||
      config.rope_of_layer.size() != static_cast<size_t>(config.layers)) {
    return bad("the list of layer types does not have one entry per layer");
  }
  for (const int32_t window : config.window) {
    if (window < 0) return bad("a sliding window is negative");
  }
  for (const int32_t rope : config.rope_of_layer) {
    if (rope < 0 || static_cast<size_t>(rope) >= config.ropes.size()) return bad("a layer names no rotary embedding");
  }
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const RopeConfig& rope = config.ropes[config.rope_of_layer[layer]];
    const int32_t head_dim = config.heads(config.window[layer]).head_dim;
    if (rope.rotary_dim > head_dim) {
      return bad("rotates " + std::to_string(rope.rotary_dim) + " dims of heads of " + std::to_string(head_dim));
    }
  }
  for (const int32_t id : config.eos_ids) {
    if (id < 0 || id >= config.vocab) return bad("the end token " + std::to_string(id) + " is outside the vocabulary");
  }
  return check_ropes(config, source);
}

Expected<ModelConfig> load_model_config(const Checkpoint& checkpoint) {
  if (checkpoint.gguf()) return parse_gguf_config(*checkpoint.gguf());
  Expected<ModelConfig> config = parse_hf_config(*checkpoint.config(), checkpoint.directory() + "/config.json");
  if (!config) return config;
  if (Status status = add_generation_ids(checkpoint, &*config); !status.ok()) return fail(status);
  return config;
}

}  // namespace tailrace
