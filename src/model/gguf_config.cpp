// The same numbers from GGUF metadata, whose keys begin with the architecture's name.
#include <algorithm>
#include <cmath>

#include "model/config_checks.h"
#include "model/model_config.h"
#include "weights/dequantize.h"
#include "weights/tensor.h"

namespace tailrace {
namespace {

struct Family {
  const char* name;  // general.architecture
  Architecture architecture;
};

constexpr Family kFamilies[] = {
    {"llama", Architecture::kLlama},  // Mistral too
    {"qwen2", Architecture::kQwen2},
    {"qwen3", Architecture::kQwen3},
    {"gemma3", Architecture::kGemma3},
    {"gpt-oss", Architecture::kGptOss},
};

constexpr int kGemmaPattern = 6;        // every sixth layer is full where the file does not say
constexpr int kGemma27bLayers = 62;     // its queries are scaled by hidden / heads instead of the head size
constexpr int64_t kControlToken = 3;    // tokenizer.ggml.token_type
// Texts that end a turn, whatever ids the metadata names: tokenizer.ggml.eos_token_id holds only one.
constexpr const char* kEndTexts[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
                                     "<end_of_turn>", "<|return|>", "<|call|>"};

// Metadata of one architecture; the first fault sticks, and all reads then give zeros.
class Metadata {
 public:
  Metadata(const GgufFile& gguf, std::string architecture) : gguf_(gguf), architecture_(std::move(architecture)) {}

  const Status& status() const { return status_; }
  void fault(StatusCode code, const std::string& reason) {
    if (status_.ok()) status_ = Status(code, gguf_.name() + ": " + reason);
  }
  std::string key(const char* suffix) const { return architecture_ + "." + suffix; }
  bool has(const char* suffix) const { return gguf_.has(key(suffix)); }

  int64_t integer(const char* suffix, int64_t highest) { return bounded(gguf_.get_u64(key(suffix)), suffix, highest); }
  int64_t integer_or(const char* suffix, int64_t fallback, int64_t highest) {
    return has(suffix) ? integer(suffix, highest) : fallback;
  }
  double number_or(const char* suffix, double fallback) {
    const Expected<double> value = gguf_.get_f64_or(key(suffix), fallback);
    if (!value) keep(value.error());
    return value.value_or(fallback);
  }
  std::string text_or(const char* suffix, const char* fallback) {
    const Expected<std::string> value = gguf_.get_string_or(key(suffix), fallback);
    if (!value) keep(value.error());
    return value.value_or(fallback);
  }
  // A key that is missing where it is needed makes the file incomplete.
  void keep(const Status& status) {
    const StatusCode code = status.code() == StatusCode::kNotFound ? StatusCode::kDataLoss : status.code();
    if (status_.ok()) status_ = Status(code, status.message());
  }

 private:
  int64_t bounded(const Expected<uint64_t>& value, const char* suffix, int64_t highest) {
    if (!value) {
      keep(value.error());
      return 0;
    }
    if (*value <= static_cast<uint64_t>(highest)) return static_cast<int64_t>(*value);
    fault(StatusCode::kDataLoss, key(suffix) + " is " + std::to_string(*value) + ", above " + std::to_string(highest));
    return 0;
  }

  const GgufFile& gguf_;
  std::string architecture_;
  Status status_;
};

const TensorView* find_tensor(const GgufFile& gguf, std::string_view name) {
  const auto it = std::find_if(gguf.tensors().begin(), gguf.tensors().end(),
                               [&](const TensorView& tensor) { return tensor.name == name; });
  return it == gguf.tensors().end() ? nullptr : &*it;
}

void read_sizes(Metadata& metadata, const GgufFile& gguf, ModelConfig* config) {
  config->hidden = metadata.integer("embedding_length", 1 << 16);
  config->layers = static_cast<int32_t>(metadata.integer("block_count", 1000));
  config->q_heads = static_cast<int32_t>(metadata.integer("attention.head_count", 1024));
  config->kv_heads = static_cast<int32_t>(metadata.integer_or("attention.head_count_kv", config->q_heads, 1024));
  config->intermediate = metadata.integer("feed_forward_length", 1 << 20);
  config->context = static_cast<int32_t>(metadata.integer("context_length", 1 << 27));
  if (config->architecture == Architecture::kGptOss) {
    config->experts = static_cast<int32_t>(metadata.integer("expert_count", 4096));
    config->experts_per_token = static_cast<int32_t>(metadata.integer("expert_used_count", 4096));
    config->intermediate = metadata.integer_or("expert_feed_forward_length", config->intermediate, 1 << 20);
    config->sinks = true;
    config->experts_name = "mlp.experts";
    config->router_name = "mlp.router";
    config->expert_bias = true;
    config->expert_intermediate = config->intermediate;
    if (config->experts == 0) metadata.fault(StatusCode::kDataLoss, metadata.key("expert_count") + " is 0");
  } else if (metadata.integer_or("expert_count", 0, 1 << 20) > 0) {
    metadata.fault(StatusCode::kUnsupported, "mixtures of experts of this architecture are not supported (gpt-oss is)");
  }
  const bool divides = config->q_heads > 0 && config->hidden % config->q_heads == 0;
  if (!metadata.has("attention.key_length") && !divides) {
    metadata.fault(StatusCode::kDataLoss, metadata.key("embedding_length") + " is no multiple of the head count");
  }
  if (!metadata.status().ok()) return;
  const int64_t head_dim = divides ? config->hidden / config->q_heads : 0;
  config->head_dim = static_cast<int32_t>(metadata.integer_or("attention.key_length", head_dim, 1024));
  if (metadata.integer_or("attention.value_length", config->head_dim, 1024) != config->head_dim) {
    metadata.fault(StatusCode::kUnsupported, "key_length and value_length differ, which is not supported");
  }
  if (!metadata.has("attention.layer_norm_rms_epsilon")) {
    metadata.fault(StatusCode::kDataLoss, metadata.key("attention.layer_norm_rms_epsilon") + " is missing");
  }
  config->norm_eps = static_cast<float>(metadata.number_or("attention.layer_norm_rms_epsilon", 0));

  const TensorView* embedding = find_tensor(gguf, "token_embd.weight");
  if (!embedding || embedding->shape.size() != 2) {
    metadata.fault(StatusCode::kDataLoss, "tensor token_embd.weight is missing or is no matrix");
    return;
  }
  config->vocab = embedding->shape[0];
  config->tied_embeddings = find_tensor(gguf, "output.weight") == nullptr;
}

RopeConfig read_rope(Metadata& metadata, const GgufFile& gguf, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = metadata.number_or("rope.freq_base", config.architecture == Architecture::kGemma3 ? 1e6 : 1e4);
  rope.rotary_dim = static_cast<int>(metadata.integer_or("rope.dimension_count", config.head_dim, 1024));
  const double old_factor = metadata.number_or("rope.scale_linear", 0);  // before rope.scaling existed
  const std::string type = metadata.text_or("rope.scaling.type", old_factor > 0 ? "linear" : "none");
  rope.factor = metadata.number_or("rope.scaling.factor", old_factor > 0 ? old_factor : 1.0);
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.truncate = config.architecture != Architecture::kGptOss;  // which no key says
    rope.original_context = metadata.number_or("rope.scaling.original_context_length", config.context);
    rope.beta_fast = metadata.number_or("rope.scaling.yarn_beta_fast", 32);
    rope.beta_slow = metadata.number_or("rope.scaling.yarn_beta_slow", 1);
    rope.attention_factor = metadata.number_or("rope.scaling.attn_factor", 1) * yarn_attention_factor(rope.factor);
  } else if (type != "none") {
    metadata.fault(StatusCode::kUnsupported, "rope scaling '" + printable(type) +
                                                 "' is not supported (none, linear and yarn are)");
  } else {
    rope.factor = 1.0;
  }
  const TensorView* divisors = find_tensor(gguf, "rope_freqs.weight");
  if (!divisors) return rope;
  if (rope.scaling != RopeScaling::kNone) {
    metadata.fault(StatusCode::kUnsupported, "rope_freqs.weight together with rope scaling '" + type + "'");
    return rope;
  }
  if (divisors->shape.size() != 1 || divisors->format != Format::kF32 || divisors->shape[0] > 1024) {
    metadata.fault(StatusCode::kDataLoss, "tensor rope_freqs.weight is no list of F32");
    return rope;
  }
  rope.scaling = RopeScaling::kDivisors;  // how converters store Llama 3's scaling
  rope.divisors.resize(divisors->shape[0]);
  metadata.keep(dequantize_row(Format::kF32, divisors->data, divisors->shape[0], rope.divisors.data()));
  return rope;
}

// Which layers slide: an explicit list, a period, or the family's rule.
std::vector<bool> sliding_layers(Metadata& metadata, const GgufFile& gguf, const ModelConfig& config) {
  const bool gemma = config.architecture == Architecture::kGemma3;
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  std::vector<bool> sliding(config.layers, !gemma);
  for (int32_t i = 0; gpt_oss && i < config.layers; ++i) sliding[i] = i % 2 == 0;
  const std::string key = metadata.key("attention.sliding_window_pattern");
  if (gguf.has(key) && !gguf.get_u64(key)) {
    const Expected<std::vector<int64_t>> list = gguf.get_ints(key);
    if (!list || list->size() != sliding.size()) {
      metadata.fault(StatusCode::kDataLoss, key + " does not have one entry per layer");
      return sliding;
    }
    for (size_t i = 0; i < sliding.size(); ++i) sliding[i] = (*list)[i] != 0;
  } else if (gemma || gguf.has(key)) {
    const int64_t period = metadata.integer_or("attention.sliding_window_pattern", kGemmaPattern, 1000);
    if (period < 1) metadata.fault(StatusCode::kDataLoss, key + " is 0");
    for (int32_t i = 0; period >= 1 && i < config.layers; ++i) sliding[i] = (i + 1) % period != 0;
  }
  return sliding;
}

void read_layer_types(Metadata& metadata, const GgufFile& gguf, ModelConfig* config) {
  const int64_t window = metadata.integer_or("attention.sliding_window", 0, 1 << 27);
  const bool gemma = config->architecture == Architecture::kGemma3;
  if ((gemma || config->architecture == Architecture::kGptOss) && window == 0) {
    metadata.fault(StatusCode::kDataLoss, metadata.key("attention.sliding_window") + " is missing");
  }
  config->window.assign(config->layers, 0);
  config->rope_of_layer.assign(config->layers, 0);
  if (window == 0) return;
  const std::vector<bool> sliding = sliding_layers(metadata, gguf, *config);
  for (int32_t i = 0; i < config->layers; ++i) {
    config->window[i] = sliding[i] ? static_cast<int32_t>(window) : 0;
    config->rope_of_layer[i] = gemma && sliding[i] ? 1 : 0;
  }
}

// The norm weights of a GGUF already hold Gemma's +1, so norm_plus_one stays false.
void read_gemma(Metadata& metadata, ModelConfig* config) {
  config->post_norms = true;
  config->activation = Activation::kGeluTanh;
  config->embed_scale = gemma_embed_scale(config->hidden);
  const double width = config->layers == kGemma27bLayers ? static_cast<double>(config->hidden) / config->q_heads
                                                         : static_cast<double>(config->head_dim);
  config->attention_scale = static_cast<float>(metadata.number_or("attention.scale", 1.0 / std::sqrt(width)));
  config->attention_softcap = static_cast<float>(metadata.number_or("attn_logit_softcapping", 0));
  config->final_softcap = static_cast<float>(metadata.number_or("final_logit_softcapping", 0));
  RopeConfig local;
  local.theta = metadata.number_or("rope.freq_base_swa", 1e4);
  local.rotary_dim = config->ropes[0].rotary_dim;
  config->ropes.push_back(local);
}

// eos, eot and eom ids, and control tokens whose text ends a turn.
void read_special_ids(Metadata& metadata, const GgufFile& gguf, ModelConfig* config) {
  const auto id_of = [&](const char* key) -> int32_t {
    if (!gguf.has(key)) return -1;
    const Expected<int64_t> id = gguf.get_i64(key);
    if (!id) metadata.keep(id.error());
    if (id && *id == 0xffffffff) return -1;  // how some converters say "none"
    if (id && (*id < -1 || *id >= config->vocab)) {
      metadata.fault(StatusCode::kDataLoss,
                     std::string(key) + " is " + std::to_string(*id) + ", outside the vocabulary");
    }
    return id && metadata.status().ok() ? static_cast<int32_t>(*id) : -1;
  };
  config->bos_id = id_of("tokenizer.ggml.bos_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const int32_t id = id_of(key);
    if (id >= 0) add_eos_ids({id}, config);
  }
  if (!gguf.has("tokenizer.ggml.tokens") || !gguf.has("tokenizer.ggml.token_type")) return;
  const Expected<std::vector<std::string>> texts = gguf.get_strings("tokenizer.ggml.tokens");
  const Expected<std::vector<int64_t>> types = gguf.get_ints("tokenizer.ggml.token_type");
  if (!texts) metadata.keep(texts.error());
  if (!types) metadata.keep(types.error());
  if (!texts || !types) return;
  const size_t count = std::min({texts->size(), types->size(), static_cast<size_t>(config->vocab)});
  for (size_t id = 0; id < count; ++id) {
    const bool ends = std::find(std::begin(kEndTexts), std::end(kEndTexts), (*texts)[id]) != std::end(kEndTexts);
    if (ends && (*types)[id] == kControlToken) add_eos_ids({static_cast<int32_t>(id)}, config);
  }
}

}  // namespace

Expected<ModelConfig> parse_gguf_config(const GgufFile& gguf) {
  const Expected<std::string> name = gguf.get_string("general.architecture");
  if (!name) return fail(name.error());
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& candidate) { return *name == candidate.name; });
  if (family == std::end(kFamilies)) {
    return fail(StatusCode::kUnsupported, gguf.name() + ": architecture " + printable(*name) +
                                              " is not supported; supported are llama, qwen2, qwen3, gemma3, gpt-oss");
  }
  Metadata metadata(gguf, *name);
  ModelConfig config;
  config.architecture = family->architecture;
  read_sizes(metadata, gguf, &config);
  if (!metadata.status().ok()) return fail(metadata.status());
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(config.head_dim));
  config.qkv_bias = find_tensor(gguf, "blk.0.attn_q.bias") != nullptr;
  config.o_bias = find_tensor(gguf, "blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = find_tensor(gguf, "blk.0.ffn_down.bias") != nullptr;
  config.qk_norm = family->architecture == Architecture::kQwen3 || family->architecture == Architecture::kGemma3;
  config.ropes.push_back(read_rope(metadata, gguf, config));
  read_layer_types(metadata, gguf, &config);
  if (family->architecture == Architecture::kGemma3) read_gemma(metadata, &config);
  read_special_ids(metadata, gguf, &config);
  if (!metadata.status().ok()) return fail(metadata.status());
  if (Status status = check_model_config(config, gguf.name()); !status.ok()) return fail(status);
  return config;
}

}  // namespace tailrace
