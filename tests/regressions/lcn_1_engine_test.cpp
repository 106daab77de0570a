// LCN-1. Window: W keys count the query itself, in one prefill, in chunks and step by step. With one layer, the logits
// at p do not change when token p - W changes and do when token p - W + 1 changes. YaRN: its numbers are rope_test's;
// here, that logits see each key of config.json, and that positions far out turn keys and queries by their difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/test_fault.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/golden.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

constexpr int kWindow = 8;

EngineSetup one_layer_setup(const std::string& path, const std::string& backend, int kv_splits) {
  EngineSetup setup = test_setup(path, backend);
  setup.limits.max_rows = 1;
  setup.limits.chunk_size = 256;
  setup.limits.max_total_tokens = 1024;
  setup.backend_options.kv_splits = kv_splits;
  return setup;
}

nlohmann::json one_layer(nlohmann::json config) {
  config["num_hidden_layers"] = 1;
  config["sliding_window"] = kWindow;
  config["layer_types"] = {"sliding_attention"};
  return config;
}

// "" or the first position and path at which the window is not kWindow keys.
std::string wrong_window(StepDriver& driver) {
  for (int p : {7, 8, 9, 63, 64, 200}) {
    for (int chunk : {256, 5, 1}) {
      std::vector<TokenId> tokens = random_prompt(p, p + 1);
      const auto at_p = [&] { return driver.logits_in_chunks(tokens, chunk).back(); };
      const std::vector<float> logits = at_p();
      const std::string where = "position " + std::to_string(p) + ", chunks of " + std::to_string(chunk);
      if (p >= kWindow) {
        tokens[p - kWindow] = tokens[p - kWindow] % 250 + 5;
        if (at_p() != logits) return where + ": the key before the window is seen";
      }
      tokens[p - kWindow + 1] = tokens[p - kWindow + 1] % 250 + 5;
      if (at_p() == logits) return where + ": the window's first key is not seen";
    }
  }
  return "";
}

TEST(Lcn1, window_counts_the_query_on_every_path) {
  for (nlohmann::json config : {tiny_gemma3_config(), tiny_gpt_oss_config(true)}) {
    TempDir dir;
    write_random_checkpoint(dir.path(), one_layer(config), 3);
    for (const char* backend : {"reference", "cpu"}) {
      for (int splits : {1, 3}) {
        SCOPED_TRACE(std::string(config["model_type"]) + " on " + backend + ", splits " + std::to_string(splits));
        StepDriver driver(one_layer_setup(dir.path(), backend, splits));
        ASSERT_TRUE(driver.ok());
        EXPECT_EQ(wrong_window(driver), "");
        if (std::string(backend) == "reference") continue;  // it has no guards to take out
        ScopedTestFault fault(Fault::kWindowOffByOne);
        EXPECT_NE(wrong_window(driver), "");
      }
    }
  }
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

// The published rope. In a layer that sees W tokens, those W tokens have the same logits wherever they stand.
TEST(Lcn1, yarn_at_long_positions_turns_by_differences_alone) {
  TempDir dir;
  nlohmann::json config = one_layer(tiny_gpt_oss_config());
  config["head_dim"] = 64;
  config["max_position_embeddings"] = 131072;
  config["rope_theta"] = 150000;
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}, {"beta_fast", 32.0}, {"beta_slow", 1.0},
                            {"truncate", false}, {"original_max_position_embeddings", 4096}};
  write_random_checkpoint(dir.path(), config, 3);
  std::vector<TokenId> tokens = random_prompt(5, kWindow);
  for (const char* backend : {"reference", "cpu"}) {
    EngineSetup setup = one_layer_setup(dir.path(), backend, 0);
    setup.limits.context_length = setup.limits.max_total_tokens = 131072;
    StepDriver driver(setup);
    ASSERT_TRUE(driver.ok());
    const auto last_logits = [&](int32_t at, bool decodes) {
      driver.restart(0, at);
      driver.extend(0, {tokens.begin(), tokens.end() - decodes});
      auto logits = driver.run()[0];
      if (!decodes) return logits;
      driver.decode(0, tokens.back());
      return driver.run()[0];
    };
    const std::vector<float> logits = last_logits(0, false);
    for (const int32_t at : {1, 4096 - kWindow, 4096 - 3, 4096, 65536 + 7, 131072 - kWindow}) {
      for (const bool decodes : {false, true}) {
        SCOPED_TRACE(std::string(backend) + " at " + std::to_string(at) + (decodes ? " by a decode step" : ""));
        EXPECT_LE(largest_difference(last_logits(at, decodes), logits), 0.04);  // keys are rounded to bf16 as turned
      }
    }
    std::swap(tokens[2], tokens[5]);  // without positions a layer would not tell
    EXPECT_GT(largest_difference(last_logits(131072 - kWindow, false), logits), 0.5);
    std::swap(tokens[2], tokens[5]);
  }
}

TEST(Lcn1, logits_see_each_key_of_yarn) {
  const Golden golden = load_golden("gpt_oss_bf16");
  const nlohmann::json config = nlohmann::json::parse(std::ifstream(golden.directory + "/config.json"));
  const GoldenPrompt& prompt = *std::max_element(
      golden.prompts.begin(), golden.prompts.end(),
      [](const GoldenPrompt& a, const GoldenPrompt& b) { return a.ids.size() < b.ids.size(); });
  const auto error_with = [&](const std::string& key, const nlohmann::json& value) {
    TempDir dir;
    std::filesystem::copy(golden.directory, dir.path());
    nlohmann::json changed = config;
    if (!key.empty()) changed["rope_scaling"][key] = value;
    std::ofstream(dir.path() + "/config.json") << changed.dump();
    StepDriver driver(one_layer_setup(dir.path(), "reference", 0));
    driver.extend(0, {prompt.ids.begin(), prompt.ids.begin() + prompt.positions.back() + 1});
    const float* expected = prompt.logits_at(prompt.positions.size() - 1);
    return largest_difference(driver.run()[0], {expected, expected + driver.vocab()});
  };
  const double tolerance = 0.03;  // of a logit; they spread by about 4
  EXPECT_LE(error_with("", nullptr), tolerance);
  EXPECT_GT(error_with("truncate", true), 15 * tolerance);
  EXPECT_GT(error_with("factor", 4.0), 15 * tolerance);
  EXPECT_GT(error_with("attention_factor", 1.0), 15 * tolerance);
  EXPECT_GT(error_with("original_max_position_embeddings", 512), 15 * tolerance);
  EXPECT_GT(error_with("beta_fast", 16.0), 15 * tolerance);
  EXPECT_GT(error_with("beta_slow", 2.0), 15 * tolerance);
}

}  // namespace
}  // namespace tailrace
