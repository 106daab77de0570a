#include "model/qwen3_5.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/model_tensors.h"
#include "model/quantization.h"

namespace tailrace {
namespace {

using nlohmann::json;

json qwen36_35b() {
  return json::parse(std::ifstream(TAILRACE_SOURCE_DIR "/configs/qwen3.6-35b-a3b/config.json"));
}

ModelConfig parsed(const json& config) {
  const auto result = parse_hf_config(config, "config.json");
  EXPECT_TRUE(result.has_value()) << result.error().message();
  return result ? *result : ModelConfig{};
}

void expect_rejected(const json& config, const std::string& reason) {
  const auto result = parse_hf_config(config, "config.json");
  ASSERT_FALSE(result.has_value()) << reason;
  EXPECT_NE(result.error().message().find(reason), std::string::npos) << result.error().message();
}

TEST(Qwen35, the_bundled_configuration_has_the_published_shapes) {
  const ModelConfig config = parsed(qwen36_35b());
  EXPECT_EQ(config.architecture, Architecture::kQwen35Moe);
  ASSERT_EQ(config.recurrent.size(), 40u);
  for (int layer = 0; layer < 40; ++layer) EXPECT_EQ(config.recurrent[layer], layer % 4 != 3) << layer;
  EXPECT_EQ(config.linear.channels(), 8192);
  EXPECT_EQ(config.linear.values(), 4096);
  EXPECT_EQ(config.linear.conv_width, 4);
  EXPECT_TRUE(config.attention_gate && config.qk_norm && config.norm_plus_one && config.shared_expert);
  EXPECT_TRUE(config.expert_halves && !config.expert_bias && !config.qkv_bias && !config.tied_embeddings);
  EXPECT_EQ(config.experts, 256);
  EXPECT_EQ(config.experts_per_token, 8);
  EXPECT_EQ(config.expert_intermediate, 512);
  EXPECT_EQ(config.intermediate, 512);
  EXPECT_EQ(config.ropes[0].rotary_dim, 64);
  EXPECT_EQ(config.ropes[0].theta, 1e7);
  EXPECT_EQ(config.attention_scale, 1.0f / 16);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{248044, 248046}));
  EXPECT_EQ(config.context, 262144);
}

// The official FP8 checkpoint's configuration names what it leaves out; linear attention's projections are in.
TEST(Qwen35, the_fp8_checkpoints_projections_have_scales_by_block) {
  const json config = json::parse(std::ifstream(TAILRACE_SOURCE_DIR "/configs/qwen3.6-35b-a3b-fp8/config.json"));
  const Quantization quantization = parsed(config).quantization;
  EXPECT_EQ(quantization.layout, ScaleLayout::kBlock);
  for (const char* name : {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj", "self_attn.q_proj",
                           "mlp.experts.7.down_proj", "mlp.shared_expert.up_proj"}) {
    EXPECT_TRUE(must_be_fp8(quantization, std::string("model.layers.3.") + name + ".weight")) << name;
  }
  for (const char* name : {"linear_attn.in_proj_a", "linear_attn.in_proj_b", "mlp.gate", "mlp.shared_expert_gate"}) {
    EXPECT_EQ(planned_format(quantization, std::string("model.layers.3.") + name + ".weight"), Format::kBF16) << name;
  }
}

// config.json lists what is quantised: projections in FP8, experts and head in NVFP4, and nothing else.
TEST(Qwen35, the_mixed_checkpoints_formats_follow_its_list) {
  const ModelConfig config = parsed(qwen36_35b());
  const auto format = [&](const std::string& name) { return planned_format(config.quantization, name); };
  EXPECT_EQ(format("lm_head.weight"), Format::kNVFP4);
  EXPECT_EQ(format("model.layers.3.mlp.experts.0.down_proj.weight"), Format::kNVFP4);
  EXPECT_EQ(format("model.layers.0.mlp.shared_expert.up_proj.weight"), Format::kNVFP4);
  EXPECT_EQ(format("model.layers.3.self_attn.q_proj.weight"), Format::kF8E4M3);
  EXPECT_EQ(format("model.layers.0.linear_attn.in_proj_qkv.weight"), Format::kF8E4M3);
  EXPECT_EQ(format("model.layers.0.linear_attn.out_proj.weight"), Format::kF8E4M3);
  for (const char* name : {"linear_attn.in_proj_a", "linear_attn.in_proj_b", "mlp.gate", "mlp.shared_expert_gate"}) {
    EXPECT_EQ(format(std::string("model.layers.0.") + name + ".weight"), Format::kBF16) << name;
  }
  EXPECT_EQ(format("model.embed_tokens.weight"), Format::kBF16);
}

TEST(Qwen35, layers_without_a_list_follow_the_interval) {
  json config = qwen36_35b();
  config["text_config"].erase("layer_types");
  EXPECT_EQ(parsed(config).recurrent, parsed(qwen36_35b()).recurrent);
  config["text_config"]["full_attention_interval"] = 8;
  EXPECT_TRUE(parsed(config).recurrent[3]);
  EXPECT_FALSE(parsed(config).recurrent[7]);
}

TEST(Qwen35, the_dense_one_has_an_mlp) {
  json config = qwen36_35b();
  config["architectures"] = {"Qwen3_5ForConditionalGeneration"};
  config.erase("quantization_config");
  expect_rejected(config, "intermediate_size is missing");
  config["text_config"]["intermediate_size"] = 17408;
  const ModelConfig dense = parsed(config);
  EXPECT_EQ(dense.architecture, Architecture::kQwen35);
  EXPECT_EQ(dense.experts, 0);
  EXPECT_FALSE(dense.shared_expert);
  EXPECT_EQ(dense.intermediate, 17408);
  size_t mlps = 0;
  for (const ModelTensor& tensor : model_tensors(dense)) mlps += tensor.name.ends_with(".mlp.gate_proj.weight");
  EXPECT_EQ(mlps, 40u);
}

TEST(Qwen35, what_cannot_be_is_named) {
  const auto with = [](const char* key, const json& value) {
    json config = qwen36_35b();
    config["text_config"][key] = value;
    return config;
  };
  expect_rejected(with("layer_types", {"full_attention"}), "layer_types has 1 entries for 40 layers");
  expect_rejected(with("layer_types", std::vector<std::string>(40, "linear_attention")),
                  "without a layer of full attention");
  expect_rejected(with("layer_types", std::vector<std::string>(40, "sliding_attention")),
                  "layer type 'sliding_attention' is not supported");
  expect_rejected(with("linear_num_value_heads", 24), "linear_num_value_heads is no multiple of linear_num_key_heads");
  expect_rejected(with("linear_conv_kernel_dim", 1), "linear_conv_kernel_dim");
  expect_rejected(with("attn_output_gate", false), "without attn_output_gate is not supported");
  expect_rejected(with("attention_bias", true), "attention_bias is not supported");
  expect_rejected(with("num_experts_per_tok", 300), "300 of 256 experts a token is out of range");
}

}  // namespace
}  // namespace tailrace
