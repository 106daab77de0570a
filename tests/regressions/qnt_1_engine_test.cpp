// Case QNT-1 for 8-bit floats: a scale that is missing, misshapen or no number must end the load with its tensor's name; a
// matrix that should be quantised and is not is an error, too. What loads is checked by the goldens fp8_*.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

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

  // Writes the checkpoint and makes an engine on it; the error's message, or "".
  std::string load() {
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
  void put_float(const std::string& name, size_t index, float value) {
    std::memcpy(tensors_.at(name).data.data() + index * 4, &value, 4);
  }

  TempDir directory_;
  json config_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> unused_;
};

TEST_F(Qnt1, each_scheme_loads) {
  for (const char* golden : {"fp8_channel", "fp8_block", "fp8_tensor"}) {
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
  EXPECT_EQ(load(), "");
  EXPECT_EQ(unused_, std::vector<std::string>{kGate + "_scale"});

  open("fp8_channel");
  config_.erase("quantization_config");
  expect_refused("q_proj.weight is F8_E4M3", "quantization_config says nothing");
  open("fp8_channel");
  config_["quantization_config"]["quant_method"] = "fbgemm_fp8";
  expect_refused("config.json", "quant_method 'fbgemm_fp8'");
}

TEST_F(Qnt1, scales_of_activations_are_named_as_unused_with_the_reason) {
  open("fp8_tensor");
  EXPECT_EQ(load(), "");
  EXPECT_EQ(unused_, (std::vector<std::string>{"*.input_scale (activations are not quantised; 14 tensors)",
                                               "*.k_scale (the KV cache is BF16; 2 tensors)",
                                               "*.v_scale (the KV cache is BF16; 2 tensors)"}));
}

// Nothing but config.json: values and scales of a size that keeps logits finite and apart.
TEST_F(Qnt1, dummy_weights_are_quantised_as_the_configuration_says) {
  for (const char* golden : {"fp8_channel", "fp8_block"}) {
    open(golden);
    ASSERT_EQ(load(), "");
    EngineSetup setup = test_setup(directory_.path());
    setup.dummy_weights = true;
    setup.dummy_seed = 3;
    TestEngine engine(setup);
    ASSERT_TRUE(engine.ok());
    EXPECT_GT(engine.host().report().bytes_by_format.at("F8_E4M3"), 200'000u);
    const auto answers = engine.run({greedy_request(random_prompt(1, 20), 8), greedy_request(random_prompt(2, 20), 8)});
    ASSERT_EQ(answers[0].ids.size(), 8u);
    EXPECT_NE(answers[0].ids, answers[1].ids);
  }
}

}  // namespace
}  // namespace tailrace
