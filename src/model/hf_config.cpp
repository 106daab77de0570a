// config.json of Hugging Face directories. Defaults are those of transformers' configuration classes, since files leave
// out what equals them.
#include <algorithm>
#include <cmath>

#include "model/config_checks.h"
#include "model/config_fields.h"
#include "model/model_config.h"
#include "model/qwen3_5.h"
#include "weights/tensor.h"

namespace tailrace {
namespace {

// What an architecture's configuration class fixes or assumes.
struct Family {
  const char* class_name;  // in `architectures`
  const char* model_type;
  Architecture architecture;
  int64_t kv_heads;        // 0: as many as attention heads
  int64_t head_dim;        // 0: hidden / heads
  int64_t context;
  int64_t window;
  int32_t bos, eos;        // -1: none
};

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", Architecture::kLlama, 0, 0, 2048, 0, 1, 2},
    {"MistralForCausalLM", "mistral", Architecture::kMistral, 8, 0, 131072, 4096, 1, 2},
    {"Qwen2ForCausalLM", "qwen2", Architecture::kQwen2, 32, 0, 32768, 4096, -1, -1},
    {"Qwen3ForCausalLM", "qwen3", Architecture::kQwen3, 32, 128, 32768, 4096, -1, -1},
    {"Gemma3ForCausalLM", "gemma3_text", Architecture::kGemma3, 4, 256, 131072, 4096, 2, 1},
    {"GptOssForCausalLM", "gpt_oss", Architecture::kGptOss, 8, 64, 131072, 128, -1, -1},
    {"Gemma4ForConditionalGeneration", "gemma4", Architecture::kGemma4, 4, 256, 131072, 512, 2, 1},
    {"Gemma4ForCausalLM", "gemma4_text", Architecture::kGemma4, 4, 256, 131072, 512, 2, 1},
    {"Gemma4UnifiedForConditionalGeneration", "gemma4_unified", Architecture::kGemma4, 4, 256, 262144, 1024, 2, 1},
    {"Gemma4UnifiedForCausalLM", "gemma4_unified_text", Architecture::kGemma4, 4, 256, 262144, 1024, 2, 1},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", Architecture::kQwen35Moe, 2, 256, 32768, 0, -1, -1},
    {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", Architecture::kQwen35Moe, 2, 256, 32768, 0, -1, -1},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5", Architecture::kQwen35, 4, 256, 32768, 0, -1, -1},
    {"Qwen3_5ForCausalLM", "qwen3_5_text", Architecture::kQwen35, 4, 256, 32768, 0, -1, -1},
    {"Gemma3ForConditionalGeneration", "gemma3", Architecture::kGemma3, 4, 256, 131072, 4096, 2, 1},
};

// Windows in most layers, each kind of layer with its own rotary embedding.
bool is_gemma(const Family& family) {
  return family.architecture == Architecture::kGemma3 || family.architecture == Architecture::kGemma4;
}

bool is_qwen35(Architecture architecture) {
  return architecture == Architecture::kQwen35 || architecture == Architecture::kQwen35Moe;
}

const Family* find_family(ConfigFields& fields) {
  const std::vector<std::string> classes = fields.texts("architectures");
  const std::string type = fields.text_or("model_type", "");
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& family) {
    return classes.empty() ? type == family.model_type : classes[0] == family.class_name;
  });
  if (found != std::end(kFamilies)) return found;
  std::string supported;
  for (const Family& family : kFamilies) supported += std::string(supported.empty() ? "" : ", ") + family.class_name;
  const std::string name = classes.empty() ? type : classes[0];
  const std::string reason = name.empty() ? "no architecture is named"
                                          : "architecture " + printable(name) + " is not supported";
  fields.fault(StatusCode::kUnsupported, reason + "; supported are " + supported);
  return nullptr;
}

void read_activation(ConfigFields& fields, const char* fallback, ModelConfig* config) {
  const char* key = fields.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = fields.text_or(key, fallback);
  if (name == "silu" || name == "swish") {
    config->activation = Activation::kSilu;
  } else if (name == "gelu_pytorch_tanh") {
    config->activation = Activation::kGeluTanh;
  } else {
    fields.fault(StatusCode::kUnsupported, std::string(key) + " '" + printable(name) +
                                               "' is not supported (silu and gelu_pytorch_tanh are)");
  }
}

void read_sizes(ConfigFields& fields, const Family& family, ModelConfig* config) {
  const bool gemma = family.architecture == Architecture::kGemma3;
  // Gemma 3's published files leave nearly everything to the class.
  const auto size = [&](const char* key, int64_t gemma_default, int64_t highest) {
    return gemma ? fields.integer_or(key, gemma_default, 1, highest) : fields.integer(key, 1, highest);
  };
  config->vocab = size("vocab_size", 262208, 1 << 22);
  config->hidden = size("hidden_size", 2304, 1 << 16);
  config->layers = static_cast<int32_t>(size("num_hidden_layers", 26, 1000));
  config->q_heads = static_cast<int32_t>(size("num_attention_heads", 8, 1024));
  // A mixture alone has a shared expert for its MLP.
  config->intermediate = family.architecture == Architecture::kQwen35Moe
                             ? fields.integer_or("shared_expert_intermediate_size", 512, 1, 1 << 20)
                             : size("intermediate_size", 9216, 1 << 20);
  if (!fields.status().ok()) return;
  const int64_t kv_heads = family.kv_heads == 0 ? config->q_heads : family.kv_heads;
  config->kv_heads = static_cast<int32_t>(fields.integer_or("num_key_value_heads", kv_heads, 1, 1024));
  if (!fields.has("head_dim") && family.head_dim == 0 && config->hidden % config->q_heads != 0) {
    fields.fault(StatusCode::kDataLoss, "hidden_size is no multiple of num_attention_heads and head_dim is missing");
  }
  const int64_t head_dim = family.head_dim != 0 ? family.head_dim : config->hidden / config->q_heads;
  config->head_dim = static_cast<int32_t>(fields.integer_or("head_dim", head_dim, 1, 1024));
  config->context = static_cast<int32_t>(fields.integer_or("max_position_embeddings", family.context, 1, 1 << 27));
  const double eps = family.architecture == Architecture::kGptOss ? 1e-5 : 1e-6;
  config->norm_eps = static_cast<float>(fields.number_or("rms_norm_eps", eps, 1e-12, 1e-1));
}

void read_yarn(ConfigFields& fields, RopeConfig* rope) {
  rope->beta_fast = fields.number_or("beta_fast", 32, 1e-3, 1e6);
  rope->beta_slow = fields.number_or("beta_slow", 1, 1e-3, 1e6);
  rope->truncate = fields.flag_or("truncate", true);
  const double mscale = fields.number_or("mscale", 0, 0, 100);
  const double mscale_all_dim = fields.number_or("mscale_all_dim", 0, 0, 100);
  const double by_paper = mscale > 0 && mscale_all_dim > 0 ? yarn_attention_factor(rope->factor, mscale) /
                                                                 yarn_attention_factor(rope->factor, mscale_all_dim)
                                                           : yarn_attention_factor(rope->factor);
  rope->attention_factor = fields.number_or("attention_factor", by_paper, 1e-3, 1e3);
}

// `params` is rope_scaling, rope_parameters or one of its per-layer-type entries; null for a plain rotary embedding.
RopeConfig read_rope(ConfigFields& owner, const nlohmann::json* params, double theta, const ModelConfig& config,
                     int32_t head_dim) {
  RopeConfig rope;
  rope.theta = theta;
  double partial = owner.number_or("partial_rotary_factor", is_qwen35(config.architecture) ? 0.25 : 1.0, 0.0, 1.0);
  if (params) {
    ConfigFields fields(*params, owner.label() + ": rope parameters");
    rope.theta = fields.number_or("rope_theta", theta, 1.0, 1e15);
    partial = fields.number_or("partial_rotary_factor", partial, 0.0, 1.0);
    const bool typed = fields.has("rope_type") || fields.has("type");
    const std::string type = fields.text_or("rope_type", fields.text_or("type", "default"));
    for (const auto& [key, unused] : params->items()) {
      if (typed || key == "rope_theta" || key == "partial_rotary_factor") continue;
      owner.fault(StatusCode::kInvalidArgument,
                  "rope parameters have '" + printable(key) + "' but no rope_type: which scaling is meant is not said");
      break;
    }
    if (type == "proportional") {
      rope.scaling = RopeScaling::kProportional;
      rope.factor = fields.number_or("factor", 1.0, 1.0, 1e6);
      rope.rotated = static_cast<int>(partial * head_dim / 2);
      partial = 1.0;
    } else if (type != "default") {
      rope.factor = fields.number("factor", 1.0, 1e6);
    }
    if (type == "llama3" || type == "yarn") {
      const double original = owner.number_or("original_max_position_embeddings", config.context, 1, 1 << 27);
      rope.original_context = fields.number_or("original_max_position_embeddings", original, 1, 1 << 27);
    }
    if (type == "linear") {
      rope.scaling = RopeScaling::kLinear;
    } else if (type == "llama3") {
      rope.scaling = RopeScaling::kLlama3;
      rope.low_freq_factor = fields.number("low_freq_factor", 1e-3, 1e6);
      rope.high_freq_factor = fields.number("high_freq_factor", 1e-3, 1e6);
    } else if (type == "yarn") {
      rope.scaling = RopeScaling::kYarn;
      read_yarn(fields, &rope);
    } else if (type != "default" && type != "proportional") {
      owner.fault(StatusCode::kUnsupported, "rope_type '" + printable(type) + "' is not supported (default, linear, " +
                                                "llama3, yarn and proportional are)");
    }
    owner.fault(fields.status());
  }
  rope.rotary_dim = static_cast<int>(head_dim * partial);
  return rope;
}

// Older files: rope_scaling, rope_theta, rope_local_base_freq. Newer: rope_parameters, flat or an entry per layer type.
void read_ropes(ConfigFields& fields, const Family& family, ModelConfig* config) {
  const bool gemma = family.architecture == Architecture::kGemma3;
  const bool gpt_oss = family.architecture == Architecture::kGptOss;
  const bool gemma4 = family.architecture == Architecture::kGemma4;
  const double theta = fields.number_or("rope_theta", gemma || gemma4 ? 1e6 : gpt_oss ? 150000.0 : 1e4, 1.0, 1e15);
  const nlohmann::json* params = fields.object("rope_parameters");
  const nlohmann::json* full = params ? params : fields.object("rope_scaling");
  const nlohmann::json* sliding = nullptr;
  if (params && (params->contains("full_attention") || params->contains("sliding_attention"))) {
    ConfigFields nested(*params, fields.label() + ": rope_parameters");
    full = nested.object("full_attention");
    sliding = nested.object("sliding_attention");
    fields.fault(nested.status());
  }
  static const nlohmann::json kGptOssRope = {{"rope_type", "yarn"}, {"factor", 32.0},   {"beta_fast", 32.0},
                                             {"beta_slow", 1.0},    {"truncate", false},
                                             {"original_max_position_embeddings", 4096}};
  if (gpt_oss && !full) full = &kGptOssRope;
  static const nlohmann::json kGemma4Rope = {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}};
  if (gemma4 && !params) full = &kGemma4Rope;
  config->ropes.push_back(read_rope(fields, full, theta, *config, config->heads(0).head_dim));
  if (!gemma && !gemma4) return;
  const double local_theta = fields.number_or("rope_local_base_freq", 1e4, 1.0, 1e15);
  config->ropes.push_back(read_rope(fields, sliding, local_theta, *config, config->head_dim));
}

// Per layer: does it slide? By layer_types where the file has them, else by the family's own rule.
std::vector<bool> sliding_layers(ConfigFields& fields, const Family& family, int32_t layers) {
  std::vector<bool> sliding(layers, family.architecture == Architecture::kMistral);
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && types.size() != static_cast<size_t>(layers)) {
    fields.fault(StatusCode::kDataLoss, "layer_types has " + std::to_string(types.size()) + " entries for " +
                                            std::to_string(layers) + " layers");
    return sliding;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "sliding_attention" && types[i] != "full_attention") {
      fields.fault(StatusCode::kUnsupported, "layer type '" + printable(types[i]) + "' is not supported");
    }
    sliding[i] = types[i] == "sliding_attention";
  }
  if (!types.empty()) return sliding;
  if (is_gemma(family)) {
    const int64_t pattern = fields.integer_or(
        "sliding_window_pattern", fields.integer_or("_sliding_window_pattern", 6, 1, 1000), 1, 1000);
    for (int32_t i = 0; i < layers; ++i) sliding[i] = (i + 1) % pattern != 0;
  } else if (family.architecture == Architecture::kGptOss) {
    for (int32_t i = 0; i < layers; ++i) sliding[i] = i % 2 == 0;
  } else if (family.architecture != Architecture::kMistral) {
    const int64_t first = fields.integer_or("max_window_layers", 28, 0, 1000);
    for (int32_t i = 0; i < layers; ++i) sliding[i] = i >= first;
  }
  return sliding;
}

// Windows, and which of Gemma's two rotary embeddings a layer uses.
void read_layer_types(ConfigFields& fields, const Family& family, ModelConfig* config) {
  config->window.assign(config->layers, 0);
  config->rope_of_layer.assign(config->layers, 0);
  const bool qwen = family.architecture == Architecture::kQwen2 || family.architecture == Architecture::kQwen3;
  if (family.architecture == Architecture::kLlama || is_qwen35(family.architecture)) return;
  if (qwen && !fields.flag_or("use_sliding_window", false)) return;
  // An explicit null switches the window off; absence means the class's default.
  const bool is_off = fields.is_null("sliding_window");
  const int64_t window = is_off ? 0 : fields.integer_or("sliding_window", family.window, 1, 1 << 27);
  const std::vector<bool> sliding = sliding_layers(fields, family, config->layers);
  for (int32_t i = 0; i < config->layers; ++i) {
    config->window[i] = sliding[i] ? static_cast<int32_t>(window) : 0;
    if (is_gemma(family)) config->rope_of_layer[i] = sliding[i] ? 1 : 0;
  }
}

void read_gemma(ConfigFields& fields, ModelConfig* config) {
  config->qk_norm = config->post_norms = config->norm_plus_one = true;
  const double width = fields.number_or("query_pre_attn_scalar", 256, 1e-3, 1e6);
  config->attention_scale = static_cast<float>(1.0 / std::sqrt(width));
  config->attention_softcap = static_cast<float>(fields.number_or("attn_logit_softcapping", 0, 0, 1e6));
  config->final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, 1e6));
  config->embed_scale = gemma_embed_scale(config->hidden);
  if (fields.flag_or("use_bidirectional_attention", false)) {
    fields.fault(StatusCode::kUnsupported, "use_bidirectional_attention is not supported");
  }
}

// Gemma 4's dense class without encoders: pixels and samples go straight into the text's layers, which are the others'.
bool is_gemma4_unified(const Family& family) {
  return std::string_view(family.model_type).starts_with("gemma4_unified");
}

// What of Gemma 4's smaller sizes nothing here computes, and what the unified class lacks.
void refuse_gemma4_parts(ConfigFields& fields, const Family& family) {
  const bool unified = is_gemma4_unified(family);
  const auto refuse = [&](const char* key) {
    fields.fault(StatusCode::kUnsupported, std::string(key) + " is not supported");
  };
  const int64_t per_layer = unified ? 0 : 256;
  if (fields.integer_or("hidden_size_per_layer_input", per_layer, 0, 1 << 16) > 0) {
    refuse("hidden_size_per_layer_input");
  }
  if (unified && fields.flag_or("enable_moe_block", false)) refuse("enable_moe_block");
  if (fields.has("per_layer_config")) refuse("per_layer_config");  // a newer spelling of head and KV sizes: not read, so not guessed
  if (fields.integer_or("num_kv_shared_layers", 0, 0, 1000) > 0) refuse("num_kv_shared_layers");
  if (fields.flag_or("use_double_wide_mlp", false)) refuse("use_double_wide_mlp");
  if (fields.text_or("use_bidirectional_attention", "vision") != "vision") refuse("use_bidirectional_attention");
}

// Heads of the full layers, before rotary embeddings are read.
void read_gemma4_heads(ConfigFields& fields, ModelConfig* config) {
  config->full_keys_are_values = fields.flag_or("attention_k_eq_v", false);
  config->full.head_dim = static_cast<int32_t>(fields.integer_or("global_head_dim", 512, 2, 1024));
  config->full.kv_heads = config->kv_heads;
  if (!config->full_keys_are_values) return;
  const int64_t heads = fields.integer_or("num_global_key_value_heads", config->kv_heads, 1, 1024);
  config->full.kv_heads = static_cast<int32_t>(heads);
}

void read_gemma4(ConfigFields& fields, const Family& family, ModelConfig* config) {
  refuse_gemma4_parts(fields, family);
  config->qk_norm = config->v_norm = config->post_norms = config->layer_scalar = true;
  config->attention_scale = 1.0f;
  config->final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, 1e6));
  config->embed_scale = gemma_embed_scale(config->hidden);
  // As transformers does: the last layer is full, whatever the list says.
  config->window.back() = config->rope_of_layer.back() = 0;
  if (!fields.flag_or("enable_moe_block", false)) return;
  config->experts = static_cast<int32_t>(fields.integer("num_experts", 1, 4096));
  config->experts_per_token = static_cast<int32_t>(fields.integer("top_k_experts", 1, 4096));
  config->expert_intermediate = fields.integer("moe_intermediate_size", 1, 1 << 20);
  config->experts_name = "experts";
  config->expert_halves = true;
}

void read_gpt_oss(ConfigFields& fields, ModelConfig* config) {
  config->sinks = config->expert_bias = true;
  config->experts_name = "mlp.experts";
  config->router_name = "mlp.router";
  config->expert_intermediate = config->intermediate;
  const int64_t experts = fields.integer_or("num_experts", 128, 1, 4096);
  config->experts = static_cast<int32_t>(fields.integer_or("num_local_experts", experts, 1, 4096));
  const int64_t chosen = fields.integer_or("experts_per_token", 4, 1, 4096);
  config->experts_per_token = static_cast<int32_t>(fields.integer_or("num_experts_per_tok", chosen, 1, 4096));
  config->expert_activation = {.alpha = static_cast<float>(fields.number_or("swiglu_alpha", 1.702, 1e-3, 1e3)),
                               .limit = static_cast<float>(fields.number_or("swiglu_limit", 7.0, 1e-3, 1e6))};
}

void read_biases(ConfigFields& fields, const Family& family, ModelConfig* config) {
  if (family.architecture == Architecture::kQwen2) {
    config->qkv_bias = true;
  } else if (family.architecture != Architecture::kMistral) {
    config->qkv_bias = config->o_bias = fields.flag_or("attention_bias", family.architecture == Architecture::kGptOss);
  }
  config->mlp_bias = family.architecture == Architecture::kLlama && fields.flag_or("mlp_bias", false);
}

// `top` is `fields` itself, or what wraps it: either may hold the ids.
void read_special_ids(ConfigFields& fields, ConfigFields& top, const Family& family, ModelConfig* config) {
  const int32_t highest = static_cast<int32_t>(config->vocab - 1);
  for (ConfigFields* holder : {&fields, &top}) {
    add_eos_ids(holder->ids("eos_token_id", highest), config);
    const std::vector<int32_t> bos = holder->ids("bos_token_id", highest);
    if (config->bos_id < 0 && !bos.empty()) config->bos_id = bos[0];
  }
  const auto absent = [&](const char* key) { return !fields.has(key) && !fields.is_null(key) && !top.has(key); };
  if (absent("eos_token_id") && family.eos >= 0 && family.eos <= highest) add_eos_ids({family.eos}, config);
  if (absent("bos_token_id") && family.bos >= 0 && family.bos <= highest) config->bos_id = family.bos;
}

}  // namespace

Expected<ModelConfig> parse_hf_config(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) return fail(StatusCode::kDataLoss, source + ": not a JSON object");
  ConfigFields top(json, source);
  const Family* family = find_family(top);
  if (!family) return fail(top.status());
  const nlohmann::json* text = top.object("text_config");
  if (!top.status().ok()) return fail(top.status());
  ConfigFields fields(text ? *text : json, text ? source + ": text_config" : source);
  const bool gemma = family->architecture == Architecture::kGemma3;

  ModelConfig config;
  config.architecture = family->architecture;
  for (const ConfigFields* holder : {&top, &fields}) {
    if (config.quantization.any() || !holder->has("quantization_config")) continue;
    auto quantization = parse_quantization((holder == &top ? json : *text)["quantization_config"], source);
    if (!quantization) return fail(quantization.error());
    config.quantization = std::move(*quantization);
  }
  read_sizes(fields, *family, &config);
  if (!fields.status().ok()) return fail(fields.status());
  const bool gemma4 = family->architecture == Architecture::kGemma4;
  if (gemma4) read_gemma4_heads(fields, &config);
  read_activation(fields, gemma || gemma4 ? "gelu_pytorch_tanh" : "silu", &config);
  read_layer_types(fields, *family, &config);
  read_ropes(fields, *family, &config);
  read_biases(fields, *family, &config);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(config.head_dim));
  config.qk_norm = family->architecture == Architecture::kQwen3;
  if (gemma) read_gemma(fields, &config);
  if (gemma4) read_gemma4(fields, *family, &config);
  if (family->architecture == Architecture::kGptOss) read_gpt_oss(fields, &config);
  if (is_qwen35(family->architecture)) read_qwen35(fields, &config);
  if (config.quantization.mxfp4 && config.experts == 0) {
    fields.fault(StatusCode::kUnsupported,
                 "quantization_config: quant_method 'mxfp4' is supported for mixtures of experts only");
  }
  config.tied_embeddings = fields.flag_or("tie_word_embeddings", top.flag_or("tie_word_embeddings", gemma || gemma4));

  read_special_ids(fields, top, *family, &config);
  fields.fault(top.status());
  if (!fields.status().ok()) return fail(fields.status());
  if (Status status = check_model_config(config, source); !status.ok()) return fail(status);
  return config;
}

}  // namespace tailrace
