// --requantize dense=fp8 computes what a checkpoint does whose maker quantised the same matrices: FP8, a scale a row.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/golden.h"
#include "support/logit_error.h"
#include "support/step_driver.h"
#include "weights/dequantize.h"

namespace tailrace {
namespace {

bool takes_fp8(const std::string& name) {
  return name.ends_with("_proj.weight") || name.ends_with(".in_proj_qkv.weight") ||
         name.ends_with(".in_proj_z.weight") || name == "lm_head.weight";
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()};
}

// The checkpoint `from` of `config` (16 bits) with its dense matrices in FP8, written to `to`.
void write_quantized(const std::string& from, nlohmann::json config, const std::string& to) {
  const auto checkpoint = Checkpoint::open(from);
  ASSERT_TRUE(checkpoint.has_value());
  CheckpointWriter writer(true);
  for (const TensorView& tensor : (*checkpoint)->tensors()) {
    const std::string stored(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
    if (!takes_fp8(tensor.name)) {
      writer.add_bytes(tensor.name, tensor.shape, stored, "BF16");
      continue;
    }
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    std::vector<float> scales(rows), values(cols);
    std::string codes;
    for (int64_t row = 0; row < rows; ++row) {
      float largest = 0;
      for (int64_t col = 0; col < cols; ++col) {
        uint16_t half;
        std::memcpy(&half, tensor.data + 2 * (row * cols + col), sizeof half);
        values[col] = bfloat16_to_float(half);
        largest = std::fmax(largest, std::fabs(values[col]));
      }
      scales[row] = largest > 0 ? largest / 448.0f : 1.0f;
      for (const float value : values) codes += static_cast<char>(float_to_e4m3(value / scales[row]));
    }
    writer.add_bytes(tensor.name, tensor.shape, codes, "F8_E4M3");
    writer.add_bytes(tensor.name + "_scale", {rows, 1}, bytes_of(scales), "F32");
  }
  const nlohmann::json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"symmetric", true}, {"dynamic", false}};
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "float-quantized"},
                                   {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
                                   {"ignore", {"re:.*mlp\\.experts.*"}}};
  writer.write(to, config);
}

EngineSetup setup_of(const std::string& path, const char* backend, bool requantize) {
  EngineSetup setup = test_setup(path, backend);
  setup.requantize_dense = requantize;
  return setup;
}

void expect_the_same(const nlohmann::json& config) {
  TempDir dir;
  const std::string wide = dir.path() + "/wide", narrow = dir.path() + "/narrow";
  write_random_checkpoint(wide, config, 3);
  write_quantized(wide, config, narrow);
  const std::vector<TokenId> prompt = random_prompt(7, 40);
  for (const char* backend : {"cpu", "reference"}) {
    StepDriver requantized(setup_of(wide, backend, true)), stored(setup_of(narrow, backend, false));
    ASSERT_TRUE(requantized.ok() && stored.ok()) << backend;
    EXPECT_EQ(requantized.logits_in_chunks(prompt, 16), stored.logits_in_chunks(prompt, 16)) << backend;
  }
}

TEST(Requantize, computes_what_a_quantised_checkpoint_does) { expect_the_same(tiny_qwen3_config()); }

// The queries' rows and their gates' take turns in one matrix; the experts keep their 16 bits.
TEST(Requantize, also_where_rows_are_picked_from_a_matrix) { expect_the_same(tiny_qwen35_config()); }

TEST(Requantize, also_in_pieces) {
  nlohmann::json config = tiny_llama_config();
  config.update({{"vocab_size", 9001}, {"hidden_size", 1024}, {"num_hidden_layers", 1}});  // a head of 18 MB
  expect_the_same(config);
}

TEST(Requantize, a_head_that_is_the_embedding_and_no_router) {
  TempDir dir;
  nlohmann::json config = tiny_qwen35_config();
  config["tie_word_embeddings"] = true;
  write_random_checkpoint(dir.path(), config, 4);
  TestEngine engine(setup_of(dir.path(), "cpu", true));
  ASSERT_TRUE(engine.ok());
  const auto& blocks = engine.host().model().blocks;
  EXPECT_EQ(std::get<EmbedBlock>(blocks.front()).table.format, Format::kF8E4M3);
  EXPECT_EQ(std::get<HeadBlock>(blocks.back()).head.data, std::get<EmbedBlock>(blocks.front()).table.data);
  const auto& formats = engine.host().report().bytes_by_format;
  EXPECT_EQ(formats.count("BF16 experts"), 1u);
  EXPECT_GT(formats.at("BF16"), 0u);  // routers
}

// What it loses, beside transformers' logits of 16 bits: 0.06 to 0.14 of their spread in the mean, on random weights whose
// attention is as sharp as these.
TEST(Requantize, how_far_it_is_from_the_stored_values) {
  for (const char* name : {"llama", "qwen3", "gemma3", "qwen3_5"}) {
    const Golden golden = load_golden(name);
    EngineSetup setup = setup_of(golden.directory, "reference", true);
    setup.limits.chunk_size = 384;
    StepDriver driver(setup);
    ASSERT_TRUE(driver.ok()) << name;
    LogitError error;
    for (const GoldenPrompt& prompt : golden.prompts) {
      for (size_t i = 0; i < prompt.positions.size(); ++i) {
        driver.restart(0);
        driver.extend(0, {prompt.ids.begin(), prompt.ids.begin() + prompt.positions[i] + 1});
        error.add(prompt.logits_at(i), driver.run()[0], spread(prompt.logits));
      }
    }
    EXPECT_LT(error.mean(), 0.25) << name;
    EXPECT_GT(error.mean(), 0.005) << name << ": nothing was rounded";
    std::printf("    %s: largest error %.3f, mean %.4f of the spread\n", name, error.max, error.mean());
  }
}

TEST(Requantize, dummy_weights_too) {
  TempDir dir;
  CheckpointWriter(true).write(dir.path(), tiny_llama_config());
  EngineSetup setup = setup_of(dir.path(), "cpu", true);
  setup.dummy_weights = true;
  StepDriver driver(setup);
  ASSERT_TRUE(driver.ok());
  driver.restart(0);
  driver.extend(0, random_prompt(1, 9));
  const auto logits = driver.run();
  for (const float logit : logits[0]) EXPECT_TRUE(std::isfinite(logit));
}

TEST(Requantize, what_it_refuses) {
  TempDir dir;
  RequestQueue queue(1);
  EngineStatus status;
  const auto error_of = [&](const std::string& path) {
    const auto host = EngineHost::create(setup_of(path, "cpu", true), queue, status, nullptr);
    return host ? std::string() : host.error().message();
  };
  const std::string wide = dir.path() + "/wide", narrow = dir.path() + "/narrow", broken = dir.path() + "/broken";
  write_random_checkpoint(wide, tiny_llama_config(), 3);
  write_quantized(wide, tiny_llama_config(), narrow);
  EXPECT_EQ(error_of(narrow), "--requantize dense=fp8: no dense matrix of this checkpoint has 16 bits or more; leave it out");

  const auto checkpoint = Checkpoint::open(wide);
  CheckpointWriter writer(true);
  for (const TensorView& tensor : (*checkpoint)->tensors()) {
    std::string stored(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") stored.replace(2 * 70, 2, "\x80\x7f");  // infinity
    writer.add_bytes(tensor.name, tensor.shape, stored, "BF16");
  }
  writer.write(broken, tiny_llama_config());
  EXPECT_EQ(error_of(broken), "tensor model.layers.1.mlp.up_proj.weight: a value is not finite");
}

}  // namespace
}  // namespace tailrace
