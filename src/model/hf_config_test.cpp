#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "model/model_config.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

using nlohmann::json;

json llama_8b() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "tie_word_embeddings": false, "attention_bias": false})");
}

json qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 2560,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 9728, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "hidden_act": "silu",
    "rope_theta": 1000000, "rope_scaling": null, "eos_token_id": 151645, "tie_word_embeddings": true,
    "use_sliding_window": false, "sliding_window": null, "max_window_layers": 36})");
}

// As published: nearly everything is left to the class.
json gemma3_4b() {
  return json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "eos_token_id": [1, 106], "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
    "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}})");
}

// As published, but for keys that nothing here reads.
json gpt_oss_20b() {
  return json::parse(R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "swiglu_limit": 7.0, "rms_norm_eps": 1e-05, "max_position_embeddings": 131072,
    "attention_bias": true, "hidden_act": "silu", "rope_theta": 150000, "tie_word_embeddings": false,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false}, "eos_token_id": 200002, "pad_token_id": 199999,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})");
}

ModelConfig parsed(const json& config) {
  const Expected<ModelConfig> result = parse_hf_config(config, "config.json");
  EXPECT_TRUE(result.has_value()) << result.error().message();
  return result.value_or(ModelConfig{});
}

void expect_rejected(const json& config, const std::string& words, StatusCode code = StatusCode::kDataLoss) {
  const Expected<ModelConfig> result = parse_hf_config(config, "dir/config.json");
  ASSERT_FALSE(result.has_value()) << words;
  EXPECT_EQ(result.error().code(), code) << result.error().message();
  EXPECT_EQ(result.error().message().find("dir/config.json"), 0u) << result.error().message();
  EXPECT_NE(result.error().message().find(words), std::string::npos) << result.error().message();
}

TEST(HfConfig, llama) {
  const ModelConfig config = parsed(llama_8b());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.vocab, 128256);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.q_heads, 32);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.intermediate, 14336);
  EXPECT_EQ(config.context, 131072);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(config.attention_scale, 1.0f / std::sqrt(128.0f));
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(config.bos_id, 128000);
  EXPECT_EQ(config.activation, Activation::kSilu);
  EXPECT_FALSE(config.tied_embeddings || config.qkv_bias || config.qk_norm || config.norm_plus_one);
  ASSERT_EQ(config.ropes.size(), 1u);
  EXPECT_EQ(config.ropes[0].scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.ropes[0].theta, 500000);
  EXPECT_EQ(config.ropes[0].factor, 8);
  EXPECT_EQ(config.ropes[0].original_context, 8192);
  EXPECT_EQ(config.ropes[0].rotary_dim, 128);
  EXPECT_EQ(config.window, std::vector<int32_t>(32, 0));
}

// Read as no scaling, it answered wrongly without a word.
TEST(HfConfig, a_scaling_without_a_type_is_an_error) {
  json config = llama_8b();
  config["rope_scaling"].erase("rope_type");
  expect_rejected(config, "no rope_type", StatusCode::kInvalidArgument);
  config["rope_scaling"] = {{"rope_type", nullptr}, {"factor", 8.0}};
  expect_rejected(config, "no rope_type", StatusCode::kInvalidArgument);
  config["rope_scaling"] = {{"rope_theta", 500000.0}};
  EXPECT_EQ(parsed(config).ropes[0].scaling, RopeScaling::kNone);
}

TEST(HfConfig, rope_parameters_is_the_newer_spelling) {
  json config = llama_8b();
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = 500000.0;
  config.erase("rope_scaling");
  config.erase("rope_theta");
  const ModelConfig result = parsed(config);
  EXPECT_EQ(result.ropes[0].scaling, RopeScaling::kLlama3);
  EXPECT_EQ(result.ropes[0].theta, 500000);
}

TEST(HfConfig, qwen2_has_biases_and_windows_from_a_layer_on) {
  json config = qwen3();
  config["architectures"] = {"Qwen2ForCausalLM"};
  config.erase("head_dim");
  config["hidden_size"] = 3584;
  config["num_attention_heads"] = 28;
  config["num_key_value_heads"] = 4;
  ModelConfig result = parsed(config);
  EXPECT_TRUE(result.qkv_bias);
  EXPECT_FALSE(result.o_bias || result.qk_norm);
  EXPECT_EQ(result.head_dim, 128);
  EXPECT_EQ(result.window, std::vector<int32_t>(36, 0));

  config["use_sliding_window"] = true;
  config["sliding_window"] = 4096;
  config["max_window_layers"] = 34;
  result = parsed(config);
  EXPECT_EQ(result.window[33], 0);
  EXPECT_EQ(result.window[34], 4096);
  EXPECT_EQ(result.window[35], 4096);
}

TEST(HfConfig, qwen3_norms_q_and_k) {
  const ModelConfig config = parsed(qwen3());
  EXPECT_TRUE(config.qk_norm && config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{151645});
  EXPECT_EQ(config.bos_id, -1);
}

TEST(HfConfig, mistral_window_may_be_null) {
  json config = llama_8b();
  config["architectures"] = {"MistralForCausalLM"};
  config.erase("rope_scaling");
  config["sliding_window"] = 4096;
  EXPECT_EQ(parsed(config).window, std::vector<int32_t>(32, 4096));
  config["sliding_window"] = nullptr;
  EXPECT_EQ(parsed(config).window, std::vector<int32_t>(32, 0));
  config["head_dim"] = 64;  // not hidden / heads
  EXPECT_EQ(parsed(config).head_dim, 64);
}

TEST(HfConfig, gemma3_takes_its_classes_defaults) {
  const ModelConfig config = parsed(gemma3_4b());
  EXPECT_EQ(config.architecture, Architecture::kGemma3);
  EXPECT_EQ(config.vocab, 262208);
  EXPECT_EQ(config.q_heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.qk_norm && config.norm_plus_one && config.post_norms && config.tied_embeddings);
  EXPECT_FLOAT_EQ(config.attention_scale, 1.0f / 16);
  EXPECT_EQ(config.embed_scale, 50.5f);  // sqrt(2560) = 50.596 in bfloat16
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(config.bos_id, 2);
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[0].theta, 1e6);
  EXPECT_EQ(config.ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.ropes[1].theta, 1e4);
  EXPECT_EQ(config.ropes[1].scaling, RopeScaling::kNone);
  for (int layer = 0; layer < 34; ++layer) {
    const bool full = layer % 6 == 5;
    EXPECT_EQ(config.window[layer], full ? 0 : 1024) << layer;
    EXPECT_EQ(config.rope_of_layer[layer], full ? 0 : 1) << layer;
  }
}

TEST(HfConfig, gemma3_newer_spelling_of_layers_and_ropes) {
  json config = gemma3_4b();
  json& text = config["text_config"];
  text["num_hidden_layers"] = 3;
  text["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  text.erase("rope_scaling");
  text["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 2e6}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}};
  const ModelConfig result = parsed(config);
  EXPECT_EQ(result.window, (std::vector<int32_t>{0, 1024, 0}));
  EXPECT_EQ(result.rope_of_layer, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(result.ropes[0].theta, 2e6);
  EXPECT_EQ(result.ropes[0].factor, 4);
  EXPECT_EQ(result.ropes[1].theta, 5e3);
  text.erase("layer_types");
  text["sliding_window_pattern"] = 2;
  EXPECT_EQ(parsed(config).window, (std::vector<int32_t>{1024, 0, 1024}));
}

TEST(HfConfig, yarn_attention_factor_is_given_or_by_paper_or_a_ratio) {
  json config = qwen3();
  json& rope = config["rope_scaling"];
  rope = {{"type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 4096}};
  ModelConfig result = parsed(config);
  EXPECT_EQ(result.ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_NEAR(result.ropes[0].attention_factor, 1.34657359, 1e-8);
  EXPECT_TRUE(result.ropes[0].truncate);
  rope["mscale"] = 0.707;  // alone it changes nothing
  EXPECT_NEAR(parsed(config).ropes[0].attention_factor, 1.34657359, 1e-8);
  rope["mscale_all_dim"] = 1.0;
  EXPECT_NEAR(parsed(config).ropes[0].attention_factor, (0.0707 * std::log(32.0) + 1) / 1.34657359, 1e-8);
  rope["attention_factor"] = 1.25;
  rope["truncate"] = false;
  result = parsed(config);
  EXPECT_EQ(result.ropes[0].attention_factor, 1.25);
  EXPECT_FALSE(result.ropes[0].truncate);
}

TEST(HfConfig, names_what_is_not_supported) {
  json config = llama_8b();
  config["rope_scaling"]["rope_type"] = "longrope";
  expect_rejected(config, "rope_type 'longrope' is not supported (default, linear, llama3, yarn and proportional are)",
                  StatusCode::kUnsupported);
  config = llama_8b();
  config["architectures"] = {"MambaForCausalLM"};
  expect_rejected(config, "architecture MambaForCausalLM is not supported; supported are LlamaForCausalLM, ",
                  StatusCode::kUnsupported);
  config = llama_8b();
  config["hidden_act"] = "relu";
  expect_rejected(config, "hidden_act 'relu' is not supported", StatusCode::kUnsupported);
  config = llama_8b();
  config["quantization_config"] = {{"quant_method", "awq"}};
  expect_rejected(config, "quantization_config: quant_method 'awq' is not supported", StatusCode::kUnsupported);
  config = gemma3_4b();
  config["text_config"]["layer_types"] = std::vector<std::string>(34, "linear_attention");
  expect_rejected(config, "layer type 'linear_attention' is not supported", StatusCode::kUnsupported);
  expect_rejected(json::object(), "no architecture is named", StatusCode::kUnsupported);
}

// configs/: Llama 3 8B has 8,030,261,248 parameters; the projections are all but embedding, head and norms.
TEST(HfConfig, bundled_shapes_are_those_of_the_published_model) {
  for (const std::string name : {"llama-3-8b", "llama-3-8b-fp8"}) {
    std::ifstream file(std::string(TAILRACE_SOURCE_DIR) + "/configs/" + name + "/config.json");
    const ModelConfig config = parsed(json::parse(file));
    int64_t parameters = 0, fp8 = 0;
    for (const ModelTensor& tensor : model_tensors(config)) {
      int64_t count = 1;
      for (int64_t dim : tensor.shape) count *= dim;
      parameters += count;
      if (must_be_fp8(config.quantization, tensor.name)) fp8 += count;
    }
    EXPECT_EQ(parameters, 8'030'261'248);
    EXPECT_EQ(fp8, name == "llama-3-8b" ? 0 : 8'030'261'248 - 2 * 128256 * 4096 - 65 * 4096);
    EXPECT_EQ(config.context, 8192);
  }
}

TEST(HfConfig, names_what_is_missing_or_out_of_range) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size"}) {
    json config = llama_8b();
    config.erase(key);
    expect_rejected(config, std::string(key) + " is missing");
    for (const json& bad : {json(0), json(-5), json(1e18), json(2.5), json("64"), json::array({1})}) {
      config[key] = bad;
      expect_rejected(config, key);
    }
  }
  json config = llama_8b();
  config["num_key_value_heads"] = 5;
  expect_rejected(config, "no multiple of 5 KV heads");
  config = llama_8b();
  config["head_dim"] = 127;
  expect_rejected(config, "127");
  config = llama_8b();
  config["num_attention_heads"] = 24;
  expect_rejected(config, "head_dim is missing");
  config = llama_8b();
  config["eos_token_id"] = 128256;
  expect_rejected(config, "eos_token_id");
  config = llama_8b();
  config["rms_norm_eps"] = -1;
  expect_rejected(config, "rms_norm_eps");
  config = llama_8b();
  config["rope_theta"] = 0;
  expect_rejected(config, "rope_theta");
  config = llama_8b();
  config["rope_scaling"].erase("factor");
  expect_rejected(config, "rope parameters: factor is missing");
  config = llama_8b();
  config["rope_scaling"]["high_freq_factor"] = 1.0;
  expect_rejected(config, "high_freq_factor is not above");
  config = llama_8b();
  config["rope_scaling"] = "llama3";
  expect_rejected(config, "rope_scaling is not an object");
  config = gemma3_4b();
  config["text_config"]["layer_types"] = {"full_attention"};
  expect_rejected(config, "layer_types has 1 entries for 34 layers");
  config = gemma3_4b();
  config["text_config"] = 3;
  expect_rejected(config, "text_config is not an object");
}

TEST(HfConfig, gpt_oss) {
  const ModelConfig config = parsed(gpt_oss_20b());
  EXPECT_EQ(config.architecture, Architecture::kGptOss);
  EXPECT_EQ(config.experts, 32);
  EXPECT_EQ(config.experts_per_token, 4);
  EXPECT_EQ(config.expert_activation.limit, 7.0f);
  EXPECT_EQ(config.expert_activation.alpha, 1.702f);
  EXPECT_TRUE(config.sinks && config.qkv_bias && config.o_bias);
  EXPECT_TRUE(config.quantization.mxfp4 && !config.quantization.fp8);
  ASSERT_EQ(config.window.size(), 24u);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(config.window[i], i % 2 == 0 ? 128 : 0);
  EXPECT_EQ(config.ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_FALSE(config.ropes[0].truncate);
  EXPECT_NEAR(config.ropes[0].attention_factor, 1.34657359, 1e-7);
  EXPECT_NEAR(rope_inv_freq(config.ropes[0])[12] / 6.794959e-03, 1, 1e-6);  // the report's number, untruncated
  EXPECT_EQ(model_tensors(config).size(), 1 + 24 * 13 + 2u);
}

TEST(HfConfig, gpt_oss_leaves_its_defaults_out) {
  json config = gpt_oss_20b();
  for (const char* key : {"rope_scaling", "rope_theta", "sliding_window", "attention_bias", "swiglu_limit",
                          "rms_norm_eps", "head_dim", "num_experts_per_tok", "experts_per_token",
                          "quantization_config"}) {
    config.erase(key);
  }
  const ModelConfig without = parsed(config), with = parsed(gpt_oss_20b());
  EXPECT_EQ(without.window, with.window);
  EXPECT_EQ(rope_inv_freq(without.ropes[0]), rope_inv_freq(with.ropes[0]));
  EXPECT_EQ(without.norm_eps, with.norm_eps);
  EXPECT_EQ(without.experts_per_token, 4);
  EXPECT_TRUE(without.qkv_bias);
  EXPECT_FALSE(without.quantization.mxfp4);
}

TEST(HfConfig, gpt_oss_that_cannot_be) {
  json config = gpt_oss_20b();
  config["num_experts_per_tok"] = 33;
  expect_rejected(config, "33 of 32 experts a token is out of range");
  config = gpt_oss_20b();
  config["swiglu_limit"] = 0;
  expect_rejected(config, "swiglu_limit");
  config = llama_8b();
  config["quantization_config"] = gpt_oss_20b()["quantization_config"];
  expect_rejected(config, "'mxfp4' is supported for mixtures of experts only", StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tailrace
