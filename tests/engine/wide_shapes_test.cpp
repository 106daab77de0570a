// Head dims and hidden sizes as large as real models', which the goldens are too small for: the fast backends against the
// reference composition, logits through chunks, decode steps and a mixed step at contexts of several blocks.
#include <gtest/gtest.h>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/logit_error.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

struct Shape {
  const char* name;
  nlohmann::json (*base)();
  int head_dim, q_heads, kv_heads, hidden;
};
constexpr Shape kShapes[] = {{"dim_128", tiny_llama_config, 128, 8, 2, 2176},
                             {"dim_256", tiny_qwen3_config, 256, 4, 2, 2176},
                             {"dim_256_window", tiny_gemma3_config, 256, 4, 2, 128},
                             {"dim_512", tiny_llama_config, 512, 2, 1, 256},
                             {"group_16", tiny_llama_config, 64, 16, 1, 256}};
constexpr int kContext = 512;

// Of the spread of the reference's logits; CUDA keeps bf16 between kernels, as the goldens' bounds say.
struct Way {
  const char* name;
  double max_error, mean_error;
};
constexpr Way kWays[] = {{"cpu", 0.01, 0.001}, {"cuda", 0.1, 0.015}};

nlohmann::json config_of(const Shape& shape) {
  nlohmann::json config = shape.base();
  config.update({{"hidden_size", shape.hidden}, {"intermediate_size", 256}, {"num_attention_heads", shape.q_heads},
                 {"num_key_value_heads", shape.kv_heads}, {"head_dim", shape.head_dim},
                 {"max_position_embeddings", kContext}});
  if (config.contains("query_pre_attn_scalar")) config["query_pre_attn_scalar"] = shape.head_dim;
  return config;
}

EngineSetup setup_of(const std::string& path, const char* backend) {
  EngineSetup setup = test_setup(path, backend);
  setup.limits.max_rows = 3;
  setup.limits.context_length = kContext;
  setup.limits.chunk_size = kContext;
  setup.limits.max_total_tokens = 3 * kContext;
  return setup;
}

// Logits of: two chunks of one row; a decode row beside another row's prompt; both rows' decode steps.
std::vector<std::vector<float>> logits_of(const EngineSetup& setup) {
  StepDriver driver(setup);
  std::vector<std::vector<float>> all;
  if (!driver.ok()) return all;
  const auto run = [&] {
    for (auto& logits : driver.run()) all.push_back(std::move(logits));
  };
  const std::vector<TokenId> one = random_prompt(3, 230), other = random_prompt(4, 70);
  driver.extend(0, {one.begin(), one.begin() + 150});
  run();
  driver.extend(0, {one.begin() + 150, one.end()});
  run();
  driver.decode(0, 5);
  driver.extend(2, other);
  run();
  for (TokenId token = 6; token < 9; ++token) {
    driver.decode(0, token);
    driver.decode(2, token + 10);
    run();
  }
  return all;
}

class WideShapes : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(WideShapes, logits_are_the_references) {
  const Shape& shape = kShapes[std::get<0>(GetParam())];
  const Way& way = kWays[std::get<1>(GetParam())];
  TempDir dir;
  EngineSetup setup = setup_of(dir.path(), "cpu");
  if (std::string(way.name) == "cuda") {
    if (const Status none = use_cuda(&setup); !none.ok()) GTEST_SKIP() << none.message();
  }
  write_random_checkpoint(dir.path(), config_of(shape), 17);
  const auto expected = logits_of(setup_of(dir.path(), "reference")), got = logits_of(setup);
  ASSERT_EQ(expected.size(), 10u);
  ASSERT_EQ(got.size(), expected.size());
  LogitError error;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    error.add(expected[i].data(), got[i], spread(expected[i]));
  }
  std::printf("    largest error %.4f, mean %.5f of the spread\n", error.max, error.mean());
  EXPECT_LE(error.max, way.max_error);
  EXPECT_LE(error.mean(), way.mean_error);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<int, int>>& info) {
  return std::string(kShapes[std::get<0>(info.param)].name) + "_" + kWays[std::get<1>(info.param)].name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, WideShapes, ::testing::Combine(::testing::Range(0, 5), ::testing::Range(0, 2)), case_name);

}  // namespace
}  // namespace tailrace
