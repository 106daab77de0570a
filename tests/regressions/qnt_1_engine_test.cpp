// Case QNT-1 for 8-bit floats, MXFP4 and NVFP4: a scale that is missing, misshapen or no number must end the load with
// its tensor's name; a matrix that should be quantised and is not is an error, too. What loads is checked by the goldens
// fp8_*, gpt_oss and gemma4_*.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/step_driver.h"
#include "weights/dequantize.h"
#include "weights/mxfp4.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kGate = "model.layers.1.mlp.gate_proj.weight";

// A copy of a golden checkpoint, whose config and tensors a test changes.
class Qnt1 : public testing::Test {
 protected:
  void open(const std::string& golden) {
    const fs::path source = fs::path(TAILRACE_SOURCE_DIR) / "tests/goldens" / golden;
    fs::copy(source, directory_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    config_ = json::parse(std::ifstream(source / "config.json"));
    std::ifstream file(source / "model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    tensors_.clear();
    const json header = json::parse(bytes.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      tensors_[name] = {entry["dtype"], entry["shape"], bytes.substr(8 + length + begin, end - begin)};
    }
  }
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string data;
  };

  EngineSetup write() const {
    json header;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
      data += tensor.data;
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream(directory_.path() + "/config.json") << config_.dump();
    std::ofstream(directory_.path() + "/model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << text << data;
    EngineSetup setup = test_setup(directory_.path(), "reference");
    setup.limits.max_rows = 1;
    setup.limits.context_length = 64;
    setup.limits.max_total_tokens = 64;
    return setup;
  }
  // Writes the checkpoint and makes an engine on it; the error's message, or "".
  std::string load() {
    const EngineSetup setup = write();
    RequestQueue queue(4);
    EngineStatus status;
    auto host = EngineHost::create(setup, queue, status, nullptr);
    unused_ = host ? (*host)->report().unused_tensors : std::vector<std::string>();
    return host ? "" : host.error().message();
  }
  void expect_refused(const std::string& tensor, const std::string& words) {
    const std::string message = load();
    EXPECT_NE(message.find(tensor), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  std::vector<std::vector<float>> logits() {
    StepDriver driver(write());
    return driver.logits_in_chunks(random_prompt(1, 40), 8);
  }
  // Of an expert matrix in MXFP4: its values in bf16, which are exact, x from the left.
  void spell_in_16_bits(const std::string& name) {
    const Tensor blocks = tensors_.at(name + "_blocks"), scales = tensors_.at(name + "_scales");
    const int64_t experts = blocks.shape[0], rows = blocks.shape[1], cols = blocks.shape[2] * 32;
    std::string data(static_cast<size_t>(experts * rows * cols) * 2, '\0');
    for (int64_t row = 0; row < experts * rows; ++row) {
      std::vector<std::byte> joined(stored_row_bytes(Format::kMXFP4, cols));
      std::vector<float> values(cols);
      join_mxfp4_row(reinterpret_cast<const std::byte*>(blocks.data.data()) + row * cols / 2,
                     reinterpret_cast<const std::byte*>(scales.data.data()) + row * cols / 32, cols, joined.data());
      ASSERT_TRUE(dequantize_row(Format::kMXFP4, joined.data(), cols, values.data()).ok());
      for (int64_t k = 0; k < cols; ++k) {
        const int64_t at = (row / rows * cols + k) * rows + row % rows;
        std::memcpy(data.data() + 2 * at, reinterpret_cast<const char*>(&values[k]) + 2, 2);
      }
    }
    tensors_.erase(name + "_blocks");
    tensors_.erase(name + "_scales");
    tensors_[name] = {"BF16", {experts, cols, rows}, data};
  }
  void put_float(const std::string& name, size_t index, float value) {
    std::memcpy(tensors_.at(name).data.data() + index * 4, &value, 4);
  }

  TempDir directory_;
  json config_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> unused_;
};

TEST_F(Qnt1, each_scheme_loads) {
  for (const char* golden : {"fp8_channel", "fp8_block", "fp8_tensor", "gpt_oss", "gemma4_nvfp4", "gemma4_nvfp4_all",
                             "gemma4_fp8", "gemma4_dense_nvfp4"}) {
    open(golden);
    EXPECT_EQ(load(), "") << golden;
  }
}

TEST_F(Qnt1, a_missing_scale_ends_the_load) {
  open("fp8_channel");
  tensors_.erase(kGate + "_scale");
  expect_refused(kGate + "_scale", "missing");
  open("fp8_block");
  tensors_.erase(kGate + "_scale_inv");
  expect_refused(kGate + "_scale_inv", "missing");
}

TEST_F(Qnt1, a_scale_of_the_wrong_shape_ends_the_load) {
  open("fp8_channel");
  tensors_[kGate + "_scale"].shape = {1, 160};
  expect_refused(kGate + "_scale", "[1, 160] instead of [160, 1]");
  open("fp8_block");
  Tensor& scale = tensors_[kGate + "_scale_inv"];
  scale.shape = {1, 2}, scale.data.resize(8);
  expect_refused(kGate + "_scale_inv", "[1, 2] instead of [2, 2]");
  open("fp8_tensor");
  Tensor& scalar = tensors_[kGate + "_scale"];
  scalar.shape = {2}, scalar.data += scalar.data;
  expect_refused(kGate + "_scale", "[2] instead of [1]");
}

TEST_F(Qnt1, a_value_that_is_no_number_ends_the_load) {
  for (const float bad : {NAN, INFINITY}) {
    open("fp8_block");
    put_float(kGate + "_scale_inv", 3, bad);
    expect_refused(kGate + "_scale_inv", "scale 3 is not finite");
  }
  open("fp8_channel");
  tensors_.at(kGate).data[20000] = '\x7f';
  expect_refused(kGate, "value 20000 is not finite");
}

TEST_F(Qnt1, stored_types_must_fit_the_configuration) {
  open("fp8_channel");  // quantised by the configuration, stored as BF16
  Tensor& gate = tensors_[kGate];
  gate.dtype = "BF16", gate.data.resize(gate.data.size() * 2, '\0');
  expect_refused(kGate, "is BF16, though quantization_config does not exempt it");
  config_["quantization_config"]["ignore"] = {"lm_head", "model.layers.1.mlp.gate_proj"};
  expect_refused(kGate + " is BF16", "_scale is there");
  tensors_.erase(kGate + "_scale");
  EXPECT_EQ(load(), "");

  open("fp8_channel");
  config_.erase("quantization_config");
  expect_refused("q_proj.weight is F8_E4M3", "quantization_config says nothing");
  open("fp8_channel");
  config_["quantization_config"]["quant_method"] = "fbgemm_fp8";
  expect_refused("config.json", "quant_method 'fbgemm_fp8'");
}

TEST_F(Qnt1, scales_beside_a_matrix_of_16_bits_end_the_load) {
  for (const char* suffix : {"_scale", "_scale_inv", "_scale_2", "_global_scale"}) {
    open("gemma4_nvfp4");  // of which only experts are quantised
    tensors_["model.language_model.layers.0.self_attn.q_proj.weight" + std::string(suffix)] = {
        "F32", {1}, std::string("\0\0\x80\x3f", 4)};
    expect_refused("model.layers.0.self_attn.q_proj.weight is BF16", std::string(suffix) + " is there");
  }
}

TEST_F(Qnt1, a_scale_of_a_tensor_is_a_finite_number_above_0) {
  const std::map<float, const char*> faults = {{0.0f, "is 0"}, {-0.5f, "is negative"}, {INFINITY, "is not finite"}};
  for (const auto& [value, words] : faults) {
    open("fp8_tensor");
    put_float(kGate + "_scale", 0, value);
    expect_refused(kGate + "_scale", words);
    for (const auto& [golden, suffix] : {std::pair{"gemma4_nvfp4", "_scale_2"},
                                         std::pair{"gemma4_dense_nvfp4", "weight_global_scale"}}) {
      open(golden);
      const auto scale = std::find_if(tensors_.begin(), tensors_.end(),
                                      [&](const auto& tensor) { return tensor.first.ends_with(suffix); });
      ASSERT_NE(scale, tensors_.end()) << golden;
      put_float(scale->first, 0, value);
      expect_refused(suffix, words);
    }
  }
}

TEST_F(Qnt1, matrices_of_one_input_are_quantised_together) {
  const std::string query = "layers.0.self_attn.q_proj";
  open("gemma4_nvfp4_all");
  Tensor& stored = tensors_.at("language_model.model." + query + ".weight");
  stored.dtype = "BF16", stored.shape[1] *= 2, stored.data.resize(stored.data.size() * 4, '\0');
  for (const char* suffix : {".weight_scale", ".weight_scale_2"}) {
    ASSERT_EQ(tensors_.erase("language_model.model." + query + suffix), 1u);
  }
  expect_refused("model." + query + ".weight is BF16", "does not exempt it");
  config_["quantization_config"]["ignore"].push_back("model.language_model." + query);
  EXPECT_EQ(load(), "");
}

const std::string kExperts = "model.layers.1.mlp.experts.";

TEST_F(Qnt1, experts_in_mxfp4_and_their_values_in_bf16_are_one_model) {
  open("gpt_oss");
  const auto stored = logits();
  for (const char* part : {"gate_up_proj", "down_proj"}) spell_in_16_bits(kExperts + part);
  config_["quantization_config"]["modules_to_not_convert"].push_back("model.layers.1.mlp.experts");
  EXPECT_EQ(logits(), stored);  // to the bit
  tensors_[kExperts + "down_proj"].data[101] ^= 0x40;
  EXPECT_NE(logits(), stored);
}

TEST_F(Qnt1, a_half_quantised_layer_ends_the_load) {
  open("gpt_oss");
  spell_in_16_bits(kExperts + "down_proj");
  expect_refused(kExperts + "down_proj", "is BF16, though quantization_config does not exempt it");
  config_["quantization_config"]["modules_to_not_convert"].push_back("model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(load(), "");  // one matrix alone may be named
}

TEST_F(Qnt1, scales_of_mxfp4_that_are_missing_misshapen_or_no_number_end_the_load) {
  open("gpt_oss");
  tensors_.erase(kExperts + "gate_up_proj_scales");
  expect_refused(kExperts + "gate_up_proj_scales", "missing");
  open("gpt_oss");
  tensors_[kExperts + "gate_up_proj_scales"].shape = {8, 2, 64};
  expect_refused(kExperts + "gate_up_proj_scales", "[8, 2, 64] instead of [8, 64, 2]");
  open("gpt_oss");
  tensors_[kExperts + "gate_up_proj_scales"].data[200] = '\xff';  // expert 1, up row 18 of 32
  expect_refused(kExperts + "gate_up_proj_scales", "the scale of a block of 32 values");
  open("gpt_oss");  // a number where exponents belong
  Tensor& scales = tensors_[kExperts + "down_proj_scales"];
  scales.dtype = "BF16", scales.data += scales.data;
  expect_refused(kExperts + "down_proj_scales", "is BF16 instead of U8");
}

TEST_F(Qnt1, blocks_of_mxfp4_that_are_missing_or_misshapen_end_the_load) {
  open("gpt_oss");
  tensors_.erase(kExperts + "down_proj_blocks");
  expect_refused(kExperts + "down_proj_blocks", "missing");
  open("gpt_oss");
  tensors_[kExperts + "down_proj_blocks"].shape = {8, 64, 16};
  expect_refused(kExperts + "down_proj_blocks", "[8, 64, 16] instead of [8, 64, 1, 16]");
  open("gpt_oss");
  tensors_.erase(kExperts + "gate_up_proj_bias");
  expect_refused(kExperts + "gate_up_proj_bias", "missing");
  open("gpt_oss");  // bytes where a matrix belongs
  Tensor& query = tensors_["model.layers.1.self_attn.q_proj.weight"];
  query.dtype = "U8", query.shape[1] *= 2;
  expect_refused("model.layers.1.self_attn.q_proj.weight", "instead of");
  open("gpt_oss");
  config_["quantization_config"]["quant_method"] = "mxfp8";
  expect_refused("config.json", "quant_method 'mxfp8'");
}

const std::string kLanguage = "model.language_model.", kUp = kLanguage + "layers.1.experts.3.up_proj.weight";
const std::string kUpRead = "model.layers.1.experts.3.up_proj.weight";

TEST_F(Qnt1, scales_of_nvfp4_that_are_missing_misshapen_or_no_number_end_the_load) {
  for (const char* suffix : {"_scale", "_scale_2"}) {
    open("gemma4_nvfp4");
    tensors_.erase(kUp + suffix);
    expect_refused(kUpRead + suffix, "missing");
  }
  open("gemma4_nvfp4");
  tensors_[kUp + "_scale"].shape = {4, 32};
  expect_refused(kUpRead + "_scale", "[4, 32] instead of [32, 4]");
  open("gemma4_nvfp4");
  tensors_[kUp + "_scale"].data[70] = '\x7f';
  expect_refused(kUpRead + "_scale", "the scale of a block of 16 values, 70 in its matrix, is not finite");
  for (const float bad : {NAN, INFINITY}) {
    open("gemma4_nvfp4");
    put_float(kUp + "_scale_2", 0, bad);
    expect_refused(kUpRead + "_scale_2", "scale 0 is not finite");
  }
  open("gemma4_dense_nvfp4");  // a divisor
  put_float(kLanguage + "layers.0.mlp.up_proj.weight_global_scale", 0, 0.0f);
  expect_refused("model.layers.0.mlp.up_proj.weight_global_scale", "scale 0 is 0");
}

TEST_F(Qnt1, a_layer_whose_experts_are_half_quantised_ends_the_load) {
  open("gemma4_nvfp4");
  tensors_.erase(kUp + "_scale"), tensors_.erase(kUp + "_scale_2");
  tensors_[kUp] = {"BF16", {32, 64}, std::string(2 * 32 * 64, '\0')};
  expect_refused(kUpRead, "is BF16, though expert 0's is NVFP4");
}

// Each matrix of a branch beside its siblings, which are quantised.
TEST_F(Qnt1, a_branch_that_is_half_quantised_ends_the_load) {
  struct Half {
    const char *golden, *prefix, *module;
    std::vector<const char*> scales;
    int64_t values_a_byte;
  };
  const std::vector<const char*> modelopt = {".weight_scale", ".weight_scale_2", ".input_scale"};
  for (const Half& half : {Half{"gemma4_nvfp4_all", "language_model.model.", "layers.0.self_attn.o_proj", modelopt, 2},
                           Half{"gemma4_nvfp4_all", "language_model.model.", "layers.0.mlp.down_proj", modelopt, 2},
                           Half{"gemma4_fp8", "model.language_model.", "layers.1.self_attn.o_proj", {".weight_scale"}, 1}}) {
    SCOPED_TRACE(half.module);
    open(half.golden);
    const std::string module = std::string(half.prefix) + half.module;
    Tensor& stored = tensors_.at(module + ".weight");
    stored.dtype = "BF16", stored.shape[1] *= half.values_a_byte;
    stored.data.resize(stored.data.size() * 2 * static_cast<size_t>(half.values_a_byte), '\0');
    for (const char* scale : half.scales) tensors_.erase(module + scale);
    expect_refused(std::string("model.") + half.module + ".weight is BF16", "quantization_config does not exempt it");
  }
  open("gemma4_nvfp4");
  std::vector<std::string> downs;
  for (const auto& [name, tensor] : tensors_) {
    if (name.starts_with(kLanguage + "layers.0.experts.") && name.ends_with("down_proj.weight")) downs.push_back(name);
  }
  ASSERT_GT(downs.size(), 1u);
  for (const std::string& name : downs) {
    Tensor& stored = tensors_.at(name);
    stored.dtype = "BF16", stored.shape[1] *= 2;
    stored.data.resize(stored.data.size() * 4, '\0');
    tensors_.erase(name + "_scale"), tensors_.erase(name + "_scale_2");
    const std::string input_scale = name.substr(0, name.rfind(".weight")) + ".input_scale";
    tensors_.erase(input_scale);
  }
  expect_refused("model.layers.0.experts.0.down_proj.weight is BF16", "quantization_config does not exempt it");
}

// ModelOpt's mixtures list what they quantise, module by module.
TEST_F(Qnt1, a_listed_module_that_is_stored_in_16_bits_ends_the_load) {
  const auto widen = [&](const std::string& module, int64_t values_a_byte) {
    Tensor& stored = tensors_.at(module + ".weight");
    stored.dtype = "BF16", stored.shape[1] *= values_a_byte;
    stored.data.resize(stored.data.size() * 2 * static_cast<size_t>(values_a_byte), '\0');
    for (const char* suffix : {".weight_scale", ".weight_scale_2", ".input_scale"}) tensors_.erase(module + suffix);
  };
  const std::string attention = kLanguage + "layers.1.self_attn.";
  const auto widen_attention = [&] {
    for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) widen(attention + part, 1);
  };
  open("qwen3_5_moe_nvfp4");
  EXPECT_EQ(load(), "");
  widen_attention();
  expect_refused("model.layers.1.self_attn.k_proj.weight is BF16",
                 "though quantized_layers lists model.layers.1.self_attn.k_proj");
  config_["quantization_config"]["exclude_modules"] = {kLanguage + "layers.1.self_attn*"};
  EXPECT_EQ(load(), "");

  open("qwen3_5_moe_nvfp4");
  widen("lm_head", 2);
  expect_refused("tensor lm_head.weight is BF16", "though quantized_layers lists lm_head");

  // An entry for many is kept if any of them is quantised; within a branch all are.
  open("qwen3_5_moe_nvfp4");
  json& listed = config_["quantization_config"]["quantized_layers"];
  for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) listed.erase(attention + part);
  listed[kLanguage + "layers.*.self_attn*"] = {{"quant_algo", "FP8"}};
  EXPECT_EQ(load(), "");
  widen(attention + "o_proj", 1);
  expect_refused("model.layers.1.self_attn.o_proj.weight is BF16", "quantization_config does not exempt it");

  // Experts as the unquantised model has them.
  open("qwen3_5_moe_nvfp4");
  const std::string experts = kLanguage + "layers.1.mlp.experts.";
  const Tensor gate = tensors_.at(experts + "0.gate_proj.weight"), down = tensors_.at(experts + "0.down_proj.weight");
  const int64_t count = std::count_if(tensors_.begin(), tensors_.end(), [&](const auto& tensor) {
    return tensor.first.starts_with(experts) && tensor.first.ends_with("gate_proj.weight");
  });
  std::erase_if(tensors_, [&](const auto& tensor) { return tensor.first.starts_with(experts); });
  const auto zeros = [&](int64_t rows, int64_t cols) {
    return Tensor{"BF16", {count, rows, cols}, std::string(static_cast<size_t>(count * rows * cols) * 2, '\0')};
  };
  tensors_[experts + "gate_up_proj"] = zeros(2 * gate.shape[0], 2 * gate.shape[1]);
  tensors_[experts + "down_proj"] = zeros(down.shape[0], 2 * down.shape[1]);
  expect_refused("model.layers.1.mlp.experts.gate_up_proj holds the experts in BF16",
                 "though quantized_layers lists model.layers.1.mlp.experts.0.gate_proj");
  config_["quantization_config"]["exclude_modules"] = {kLanguage + "layers.1.mlp.experts"};
  EXPECT_EQ(load(), "");
}

// The configuration claims NVFP4 for all projections; one that is stored in 16 bits is taken as it is.
TEST_F(Qnt1, what_is_there_decides_not_what_the_configuration_claims) {
  open("gemma4_nvfp4");
  config_["quantization_config"]["ignore"] = json::array();
  EXPECT_EQ(load(), "");
  EXPECT_EQ(unused_, (std::vector<std::string>{"model.embed_vision.* (only text is read; 1 tensors)",
                                               "model.vision_tower.* (only text is read; 1 tensors)"}));
}

TEST_F(Qnt1, scales_of_activations_are_named_as_unused_with_the_reason) {
  open("fp8_tensor");
  EXPECT_EQ(load(), "");
  EXPECT_EQ(unused_, (std::vector<std::string>{"*.input_scale (activations are not quantised; 14 tensors)",
                                               "*.k_scale (the KV cache takes no scales; 2 tensors)",
                                               "*.v_scale (the KV cache takes no scales; 2 tensors)"}));
}

// Nothing but config.json: values and scales of a size that keeps logits finite and apart.
TEST_F(Qnt1, dummy_weights_are_quantised_as_the_configuration_says) {
  for (const char* golden : {"fp8_channel", "fp8_block", "gpt_oss", "gemma4_nvfp4", "gemma4_fp8"}) {
    SCOPED_TRACE(golden);
    open(golden);
    ASSERT_EQ(load(), "");
    EngineSetup setup = test_setup(directory_.path());
    setup.dummy_weights = true;
    setup.dummy_seed = 3;
    TestEngine engine(setup);
    ASSERT_TRUE(engine.ok());
    const std::map<std::string, std::string> kinds = {{"gpt_oss", "MXFP4 experts"}, {"gemma4_nvfp4", "NVFP4 experts"},
                                                      {"gemma4_fp8", "F8_E4M3 experts"}};
    const auto kind = kinds.find(golden);
    const size_t bytes = engine.host().report().bytes_by_format.at(kind == kinds.end() ? "F8_E4M3" : kind->second);
    EXPECT_GT(bytes, kind == kinds.end() ? 200'000u : 60'000u);
    const auto answers = engine.run({greedy_request(random_prompt(1, 20), 8), greedy_request(random_prompt(2, 20), 8)});
    ASSERT_EQ(answers[0].ids.size(), 8u);
    EXPECT_NE(answers[0].ids, answers[1].ids);
  }
}

}  // namespace
}  // namespace tailrace
