// Gemma 4's configuration: the bundled shapes, what only this family has, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "model/expert_tensors.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

using nlohmann::json;

json bundled(const std::string& name) {
  return json::parse(std::ifstream(std::string(TAILRACE_SOURCE_DIR) + "/configs/" + name + "/config.json"));
}
ModelConfig parsed(const json& config) {
  const Expected<ModelConfig> result = parse_hf_config(config, "config.json");
  EXPECT_TRUE(result.has_value()) << result.error().message();
  return result.value_or(ModelConfig{});
}

TEST(Gemma4Config, shapes_are_those_of_the_published_model) {
  for (const std::string name : {"gemma-4-26b-a4b", "gemma-4-26b-a4b-fp8"}) {
    const ModelConfig config = parsed(bundled(name));
    int64_t dense = 0, experts = 0;
    for (const ModelTensor& tensor : model_tensors(config)) {
      int64_t count = 1;
      for (int64_t dim : tensor.shape) count *= dim;
      dense += count;
    }
    const Format expected = name.ends_with("fp8") ? Format::kF8E4M3 : Format::kNVFP4;
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      const ExpertSource source = dummy_experts(config, 7, part);
      EXPECT_EQ(source.format, expected);
      experts += config.layers * source.experts * source.rows * source.cols;
    }
    EXPECT_EQ(experts, int64_t{30} * 128 * 3 * 704 * 2816);
    EXPECT_NEAR(static_cast<double>(dense + experts), 25.2e9, 0.1e9);
    const bool fp8 = name.ends_with("fp8");
    EXPECT_EQ(planned_format(config.quantization, "model.layers.3.self_attn.q_proj.weight"),
              fp8 ? Format::kF8E4M3 : Format::kBF16);
    EXPECT_EQ(planned_format(config.quantization, "model.layers.3.router.proj.weight"), Format::kBF16);
  }
}

TEST(Gemma4Config, full_layers_have_heads_and_a_rotary_embedding_of_their_own) {
  const ModelConfig config = parsed(bundled("gemma-4-26b-a4b"));
  for (int layer = 0; layer < 30; ++layer) {
    const bool full = layer % 6 == 5;
    EXPECT_EQ(config.window[layer], full ? 0 : 1024);
    EXPECT_EQ(config.rope_of_layer[layer], full ? 0 : 1);
    EXPECT_EQ(config.heads(config.window[layer]).kv_heads, full ? 2 : 8);
    EXPECT_EQ(config.heads(config.window[layer]).head_dim, full ? 512 : 256);
  }
  const std::vector<float> full = rope_inv_freq(config.ropes[0]), sliding = rope_inv_freq(config.ropes[1]);
  ASSERT_EQ(full.size(), 256u);
  EXPECT_FLOAT_EQ(full[63], static_cast<float>(std::pow(1e6, -126.0 / 512)));
  EXPECT_EQ(full[64], 0.0f);
  ASSERT_EQ(sliding.size(), 128u);
  EXPECT_FLOAT_EQ(sliding[127], static_cast<float>(std::pow(1e4, -254.0 / 256)));
  EXPECT_EQ(config.attention_scale, 1.0f);
  EXPECT_EQ(config.final_softcap, 30.0f);
  EXPECT_EQ(config.embed_scale, 53.0f);
  EXPECT_TRUE(config.v_norm && config.qk_norm && config.full_keys_are_values && config.layer_scalar);
  EXPECT_FALSE(config.norm_plus_one);
}

TEST(Gemma4Config, parts_of_other_sizes_are_refused_by_name) {
  const auto refused = [](const char* key, const json& value) {
    json config = bundled("gemma-4-26b-a4b");
    config["text_config"][key] = value;
    const Expected<ModelConfig> result = parse_hf_config(config, "config.json");
    return !result && result.error().code() == StatusCode::kUnsupported &&
           result.error().message().find(key) != std::string::npos;
  };
  EXPECT_TRUE(refused("hidden_size_per_layer_input", 256));
  EXPECT_TRUE(refused("num_kv_shared_layers", 10));
  EXPECT_TRUE(refused("per_layer_config", json::array({{{"head_dim", 512}}})));
  EXPECT_TRUE(refused("use_double_wide_mlp", true));
  EXPECT_TRUE(refused("use_bidirectional_attention", "all"));
  EXPECT_FALSE(refused("use_bidirectional_attention", "vision"));
}

// Gemma 4 12B is published as a class of its own, which knows neither per-layer inputs nor experts.
TEST(Gemma4Config, the_unified_class_is_the_dense_text_model) {
  json config = bundled("gemma-4-12b");
  EXPECT_EQ(config["model_type"], "gemma4_unified");
  json plain = config;
  plain["architectures"] = {"Gemma4ForConditionalGeneration"};
  const ModelConfig unified = parsed(config), dense = parsed(plain);
  EXPECT_EQ(unified.architecture, Architecture::kGemma4);
  EXPECT_EQ(unified.layers, 48);
  EXPECT_EQ(unified.full.kv_heads, 1);
  EXPECT_EQ(unified.full.head_dim, 512);
  EXPECT_TRUE(unified.full_keys_are_values && unified.v_norm && unified.layer_scalar && unified.tied_embeddings);
  EXPECT_EQ(unified.window, dense.window);
  const auto tensors = model_tensors(unified), same = model_tensors(dense);
  ASSERT_EQ(tensors.size(), same.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].name, same[i].name);
    EXPECT_EQ(tensors[i].shape, same[i].shape) << tensors[i].name;
  }
  json& text = config["text_config"];
  for (const char* key : {"hidden_size_per_layer_input", "sliding_window", "max_position_embeddings"}) text.erase(key);
  const ModelConfig defaults = parsed(config);
  EXPECT_EQ(defaults.window, unified.window);
  EXPECT_EQ(defaults.context, unified.context);
  config.erase("architectures");
  EXPECT_EQ(parsed(config).layers, 48);
  text["enable_moe_block"] = true;
  const auto refused = parse_hf_config(config, "config.json");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("enable_moe_block"), std::string::npos) << refused.error().message();
  for (const char* name : {"model.vision_embedder.patch_dense.weight", "model.embed_vision.embedding_projection.weight",
                           "model.embed_audio.embedding_projection.weight"}) {
    const auto unneeded = why_not_used(name, unified.quantization);
    ASSERT_TRUE(unneeded.has_value()) << name;
    EXPECT_STREQ(unneeded->why, "only text is read");
  }
}

TEST(Gemma4Config, dense_sizes_have_no_experts) {
  json config = bundled("gemma-4-26b-a4b");
  config["text_config"]["enable_moe_block"] = false;
  const ModelConfig dense = parsed(config);
  EXPECT_EQ(dense.experts, 0);
  for (const ModelTensor& tensor : model_tensors(dense)) {
    EXPECT_EQ(tensor.name.find("router"), std::string::npos) << tensor.name;
    EXPECT_EQ(tensor.name.find("layernorm_"), std::string::npos) << tensor.name;
  }
}

}  // namespace
}  // namespace tailrace
