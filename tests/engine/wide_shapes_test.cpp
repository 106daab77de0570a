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

// A mixture whose shared expert has the experts' shape: in their format it can be one of them (MoeBlock::shared_last).
// All experts are chosen, since rounding turns close choices.
nlohmann::json shared_expert_config(std::initializer_list<const char*> in_nvfp4) {
  nlohmann::json config = tiny_qwen35_config();
  config.update({{"linear_key_head_dim", 64}, {"linear_value_head_dim", 64}, {"num_experts_per_tok", 8},
                 {"moe_intermediate_size", 128}, {"shared_expert_intermediate_size", 128}});
  if (in_nvfp4.size() == 0) return config;
  nlohmann::json layers;
  for (const char* module : in_nvfp4) {
    layers[std::string("model.layers.*.mlp.") + module + ".*"] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
  return config;
}
nlohmann::json shared_nvfp4_config() { return shared_expert_config({"experts", "shared_expert"}); }

constexpr Shape kShapes[] = {{"dim_128", tiny_llama_config, 128, 8, 2, 2176},
                             {"dim_256", tiny_qwen3_config, 256, 4, 2, 2176},
                             {"dim_256_window", tiny_gemma3_config, 256, 4, 2, 128},
                             {"dim_512", tiny_llama_config, 512, 2, 1, 256},
                             {"dim_512_group_16", tiny_llama_config, 512, 16, 1, 256},
                             {"group_16", tiny_llama_config, 64, 16, 1, 256},
                             {"shared_last", [] { return shared_expert_config({}); }, 64, 4, 2, 256},
                             {"shared_last_nvfp4", shared_nvfp4_config, 64, 4, 2, 256},
                             {"shared_beside_nvfp4", [] { return shared_expert_config({"experts"}); }, 64, 4, 2, 256}};
constexpr int kContext = 512;

// Of the spread of the reference's logits; CUDA keeps bf16 between kernels, as the goldens' bounds say.
struct Way {
  const char* name;
  double max_error, mean_error;
};
constexpr Way kWays[] = {{"cpu", 0.01, 0.001}, {"cuda", 0.1, 0.015}};
// As of the goldens: the CPU multiplies NVFP4 with activations in int8; a state carries every rounding of a prompt on.
constexpr Way kInt8{"cpu", 0.09, 0.022}, kRoundedState{"cuda", 0.2, 0.02};
const Way& bounds_of(const std::string& shape, const Way& way) {
  if (!shape.starts_with("shared")) return way;
  if (std::string(way.name) == "cuda") return kRoundedState;
  return shape.ends_with("nvfp4") ? kInt8 : way;
}

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

struct Answer {
  std::vector<std::vector<float>> logits;
  int shared_last = 0, shared_beside = 0;  // mixtures whose shared expert is one of the experts, or beside them
};

// Logits of: two chunks of one row; a decode row beside another row's prompt; both rows' decode steps.
Answer answer_of(const EngineSetup& setup) {
  StepDriver driver(setup);
  Answer answer;
  if (!driver.ok()) return answer;
  for (const LayerBlock& block : driver.model().blocks) {
    const auto* moe = std::get_if<MoeBlock>(&block);
    if (moe != nullptr) (moe->shared_last() ? answer.shared_last : answer.shared_beside) += 1;
  }
  const auto run = [&] {
    for (auto& logits : driver.run()) answer.logits.push_back(std::move(logits));
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
  return answer;
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
  const Answer reference = answer_of(setup_of(dir.path(), "reference")), answer = answer_of(setup);
  const auto &expected = reference.logits, &got = answer.logits;
  ASSERT_EQ(expected.size(), 10u);
  ASSERT_EQ(got.size(), expected.size());
  LogitError error;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size());
    error.add(expected[i].data(), got[i], spread(expected[i]));
  }
  EXPECT_EQ(reference.shared_last, std::string(shape.name).starts_with("shared_last") ? 4 : 0);
  EXPECT_EQ(answer.shared_last, std::string(way.name) == "cuda" ? reference.shared_last : 0);
  EXPECT_EQ(answer.shared_last + answer.shared_beside, std::string(shape.name).starts_with("shared") ? 4 : 0);
  std::printf("    largest error %.4f, mean %.5f of the spread\n", error.max, error.mean());
  EXPECT_LE(error.max, bounds_of(shape.name, way).max_error);
  EXPECT_LE(error.mean(), bounds_of(shape.name, way).mean_error);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<int, int>>& info) {
  return std::string(kShapes[std::get<0>(info.param)].name) + "_" + kWays[std::get<1>(info.param)].name;
}
constexpr int kNumShapes = static_cast<int>(std::size(kShapes));
INSTANTIATE_TEST_SUITE_P(Shapes, WideShapes,
                         ::testing::Combine(::testing::Range(0, kNumShapes), ::testing::Range(0, 2)), case_name);

}  // namespace
}  // namespace tailrace
