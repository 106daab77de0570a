#include "model/quantization.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using nlohmann::json;

json compressed(const char* strategy) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}}},
              {"input_activations",
               {{"num_bits", 8}, {"type", "float"}, {"dynamic", true}, {"strategy", "token"}}}}}}}};
}
const json kFp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
const json kModelOpt = {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}};

// As Qwen3.6's checkpoint has it.
const json kMixed = {{"quant_method", "modelopt"},
                     {"quant_algo", "MIXED_PRECISION"},
                     {"quantized_layers",
                      {{"lm_head", {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}}},
                       {"model.language_model.layers.*.mlp.experts*", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
                       {"model.language_model.layers.3.self_attn.q_proj", {{"quant_algo", "FP8"}}}}}};
json compressed_nvfp4() {
  json object = compressed("tensor_group");
  object["format"] = "nvfp4-pack-quantized";
  object["config_groups"]["group_0"]["weights"].update({{"num_bits", 4}, {"group_size", 16}});
  return object;
}

Quantization parse(const json& object) {
  const auto parsed = parse_quantization(object, "config.json");
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message();
  return parsed ? *parsed : Quantization{};
}
void expect_refused(const json& object, const std::string& words) {
  const auto parsed = parse_quantization(object, "config.json");
  ASSERT_FALSE(parsed.has_value()) << words;
  EXPECT_EQ(parsed.error().code(), StatusCode::kUnsupported);
  EXPECT_EQ(parsed.error().message().find("config.json: quantization_config"), 0u) << parsed.error().message();
  EXPECT_NE(parsed.error().message().find(words), std::string::npos) << parsed.error().message();
}

TEST(Quantization, reads_each_writers_spelling) {
  Quantization q = parse(compressed("channel"));
  EXPECT_TRUE(q.fp8);
  EXPECT_EQ(q.layout, ScaleLayout::kChannel);
  EXPECT_EQ(q.suffix, "_scale");
  EXPECT_EQ(parse(compressed("tensor")).layout, ScaleLayout::kTensor);
  json block = compressed("block");
  block["config_groups"]["group_0"]["weights"]["block_structure"] = {128, 128};
  EXPECT_EQ(parse(block).layout, ScaleLayout::kBlock);
  q = parse(kFp8);
  EXPECT_EQ(q.layout, ScaleLayout::kBlock);
  EXPECT_EQ(q.suffix, "_scale_inv");
  json per_tensor = kFp8;
  per_tensor["weight_block_size"] = nullptr;
  EXPECT_EQ(parse(per_tensor).layout, ScaleLayout::kTensor);
  EXPECT_EQ(parse(per_tensor).suffix, "_scale");
  EXPECT_EQ(parse(kModelOpt).layout, ScaleLayout::kTensor);
}

TEST(Quantization, refuses_by_name_what_it_does_not_compute) {
  expect_refused({{"quant_method", "gptq"}}, "quant_method 'gptq'");
  expect_refused(json::object(), "quant_method ''");
  json bad = kModelOpt;
  bad["quant_algo"] = "W4A8_AWQ";
  expect_refused(bad, "quant_algo 'W4A8_AWQ'");
  bad = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 32}};
  expect_refused(bad, "groups of another size");
  bad = kMixed;
  bad["quantized_layers"]["lm_head"]["quant_algo"] = "INT4_AWQ";
  expect_refused(bad, "lm_head: quant_algo 'INT4_AWQ'");
  bad = kFp8;
  bad["weight_block_size"] = {64, 64};
  expect_refused(bad, "weight_block_size");
  bad = kFp8;
  bad["fmt"] = "e5m2";
  expect_refused(bad, "fmt 'e5m2'");
  bad = compressed("group");
  expect_refused(bad, "strategy 'group'");
  bad = compressed("channel");
  bad["format"] = "pack-quantized";
  expect_refused(bad, "format 'pack-quantized'");
  bad = compressed_nvfp4();
  bad["config_groups"]["group_0"]["weights"]["group_size"] = 32;
  expect_refused(bad, "4-bit floats other than NVFP4");
  bad = compressed("channel");
  bad["config_groups"]["group_0"]["weights"]["type"] = "int";
  expect_refused(bad, "only 8-bit symmetric floats");
  bad = compressed("channel");
  bad["config_groups"]["group_0"]["targets"] = {"re:.*q_proj"};
  expect_refused(bad, "targets");
  bad = compressed("channel");
  bad["config_groups"]["group_1"] = bad["config_groups"]["group_0"];
  expect_refused(bad, "config_groups");
  bad = compressed("channel");
  bad["transform_config"] = {{"config_groups", json::object()}};
  expect_refused(bad, "transform_config");
  bad = compressed("channel");
  bad["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  expect_refused(bad, "sparsity_config");
  bad = compressed("channel");
  bad["ignore"] = {"re:("};
  expect_refused(bad, "pattern re:(");
}

TEST(Quantization, which_matrices_are_quantised) {
  Quantization q = parse(compressed("channel"));
  EXPECT_TRUE(must_be_fp8(q, "model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(must_be_fp8(q, "model.layers.11.mlp.down_proj.weight"));
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.embed_tokens.weight", "model.norm.weight",
                           "model.layers.0.input_layernorm.weight", "lm_head.weight"}) {
    EXPECT_FALSE(must_be_fp8(q, name)) << name;
  }
  json with_head = compressed("channel");
  with_head["ignore"] = json::array();
  EXPECT_TRUE(must_be_fp8(parse(with_head), "lm_head.weight"));
  EXPECT_FALSE(must_be_fp8(parse(kFp8), "lm_head.weight"));  // its writers leave the head alone without saying so
  EXPECT_FALSE(must_be_fp8(Quantization{}, "model.layers.0.self_attn.q_proj.weight"));
}

TEST(Quantization, nvfp4_and_mixtures_are_read_by_tensor) {
  const char* expert = "model.layers.7.mlp.experts.31.up_proj.weight";
  const char* q_proj = "model.layers.3.self_attn.q_proj.weight";
  Quantization q = parse(kMixed);
  EXPECT_TRUE(q.by_tensor && !q.fp8 && q.any());
  EXPECT_EQ(planned_format(q, expert), Format::kNVFP4);
  EXPECT_EQ(planned_format(q, "lm_head.weight"), Format::kNVFP4);
  EXPECT_EQ(planned_format(q, q_proj), Format::kF8E4M3);
  EXPECT_EQ(planned_format(q, "model.layers.3.self_attn.k_proj.weight"), Format::kBF16);  // not listed
  EXPECT_FALSE(must_be_fp8(q, q_proj));
  for (const json& object : {compressed_nvfp4(), json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}}) {
    q = parse(object);
    EXPECT_TRUE(q.by_tensor && !q.fp8);
    EXPECT_EQ(planned_format(q, expert), Format::kNVFP4);
    EXPECT_EQ(planned_format(q, "model.norm.weight"), Format::kBF16);
  }
  json mixed = compressed_nvfp4();
  mixed["format"] = "mixed-precision";
  mixed["config_groups"]["group_1"] = compressed("channel")["config_groups"]["group_0"];
  mixed["config_groups"]["group_1"]["targets"] = {"re:.*self_attn.*"};
  EXPECT_TRUE(parse(mixed).by_tensor);
}

TEST(Quantization, the_shape_of_scales_tells_their_layout) {
  EXPECT_EQ(layout_of({}, 300), ScaleLayout::kTensor);
  EXPECT_EQ(layout_of({1}, 300), ScaleLayout::kTensor);
  EXPECT_EQ(layout_of({300, 1}, 300), ScaleLayout::kChannel);
  EXPECT_EQ(layout_of({300}, 300), ScaleLayout::kChannel);
  EXPECT_EQ(layout_of({3, 2}, 300), ScaleLayout::kBlock);
}

TEST(Quantization, ignored_modules_in_each_spelling) {
  const auto ignores = [](const char* entry, const char* name) {
    json config = kModelOpt;
    config["ignore"] = {entry};
    return !must_be_fp8(parse(config), name);
  };
  const char* k1 = "model.layers.1.self_attn.k_proj.weight";
  const char* k11 = "model.layers.11.self_attn.k_proj.weight";
  for (const char* entry : {"model.layers.1.self_attn.k_proj", "model.layers.1", "model.layers.1*",
                            "re:.*\\.1\\..*k_proj$", "model.language_model.layers.1.self_attn.k_proj",
                            "*layers.1.self*k_proj"}) {
    EXPECT_TRUE(ignores(entry, k1)) << entry;
  }
  for (const char* entry : {"model.layers.1.self_attn.k_proj", "model.layers.1", "re:.*\\.1\\..*k_proj$", "*layers.1.*",
                            "re:k_proj", "layers.11.self_attn.q_proj", ""}) {
    EXPECT_FALSE(ignores(entry, k11)) << entry;
  }
  EXPECT_TRUE(ignores("k_proj", k11));
}

TensorView scale_view(std::vector<int64_t> shape, Format format = Format::kF32) {
  return {"s", format, std::move(shape)};
}

TEST(Quantization, scales_have_the_shape_of_their_layout) {
  const Quantization tensor = parse(compressed("tensor")), channel = parse(compressed("channel")), block = parse(kFp8);
  EXPECT_EQ(scale_fault(tensor.layout, scale_view({}), 300, 200), "");
  EXPECT_EQ(scale_fault(tensor.layout, scale_view({1}), 300, 200), "");
  EXPECT_NE(scale_fault(tensor.layout, scale_view({300, 1}), 300, 200), "");
  EXPECT_EQ(scale_fault(channel.layout, scale_view({300, 1}, Format::kBF16), 300, 200), "");
  EXPECT_EQ(scale_fault(channel.layout, scale_view({300}), 300, 200), "");
  EXPECT_EQ(scale_fault(channel.layout, scale_view({1, 300}), 300, 200), "has the shape [1, 300] instead of [300, 1]");
  EXPECT_NE(scale_fault(channel.layout, scale_view({1}), 300, 200), "");
  EXPECT_EQ(scale_fault(block.layout, scale_view({3, 2}), 300, 200), "");
  EXPECT_EQ(scale_fault(block.layout, scale_view({2, 2}), 300, 200), "has the shape [2, 2] instead of [3, 2]");
  EXPECT_NE(scale_fault(channel.layout, scale_view({300, 1}, Format::kF8E4M3), 300, 200), "");
}

TEST(Quantization, scales_expand_to_one_per_row_or_per_128_columns) {
  EXPECT_EQ(expand_scales(parse(kModelOpt).layout, {0.5f}, 3, 64), (std::vector<float>{0.5f, 0.5f, 0.5f}));
  EXPECT_EQ(expand_scales(parse(compressed("channel")).layout, {1, 2, 3}, 3, 512), (std::vector<float>{1, 2, 3}));
  const std::vector<float> blocks = expand_scales(parse(kFp8).layout, {1, 2, 3, 4}, 130, 200);
  ASSERT_EQ(blocks.size(), 260u);
  EXPECT_EQ(blocks[0], 1);
  EXPECT_EQ(blocks[127 * 2 + 1], 2);
  EXPECT_EQ(blocks[128 * 2], 3);
  EXPECT_EQ(blocks[129 * 2 + 1], 4);
}

}  // namespace
}  // namespace tailrace
