// Tiny checkpoints of each architecture against what transformers computes for them in float32: logits at positions around
// blocks and windows, through prefill, chunks and single decode steps, and the greedy continuation.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "support/engine_fixture.h"
#include "support/golden.h"
#include "support/logit_error.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

// Stated per backend, relative to the spread (standard deviation) of the golden's logits. The KV pool is bf16 here and
// float32 there.
struct Way {
  const char* backend;
  const char* isa;  // of the CPU backend
  double max_error;
  double mean_error;
};
constexpr Way kWays[] = {{"reference", "", 0.005, 0.0005},
                         {"cpu", "portable", 0.005, 0.0005},
                         {"cpu", "avx2", 0.005, 0.0005},
                         {"cpu", "avx512_vnni", 0.005, 0.0005},
                         // bf16 between kernels. transformers itself, run in bf16, is off by 0.097 and 0.016 on these;
                         // the worst mean is 0.0131, two rows of fp8_block in a mixed step; of all others 0.0092.
                         {"cuda", "", 0.1, 0.015}};

// The CPU backend multiplies MXFP4 and NVFP4, as every format of blocks, with activations in int8 (32 to a scale): half
// a percent of a block's root mean square in each product, the same in extend and decode. All of the difference is
// that: with experts in bf16 the same backend is within 0.0001, and so is the reference on these formats.
struct Int8 {
  const char* model;
  double max_error, mean_error;          // of all that a test compares
  double max_row_error, mean_row_error;  // of each row, but those of a token, or of one that it attends to, that chose
                                         // another expert: one and a twentieth of them, where max_error is above
};
constexpr Int8 kInt8[] = {
    // Experts alone: 0.085 and 0.021 a row; two chose another (their router's second and third logits are 0.03 apart,
    // which is within the rounding): 0.19, 0.0274 in the mean of a mixed step's two rows.
    {"gpt_oss", 0.2, 0.03, 0.09, 0.022},
    {"gguf_gpt_oss", 0.2, 0.03, 0.09, 0.022},
    // 0.075 and 0.017 a row; one chose another: 0.143, 0.0115 in the mean.
    {"gemma4_nvfp4", 0.2, 0.0175, 0.09, 0.022},
    // The head, too: 0.075 and 0.017 a row, 0.0104 in the mean.
    {"qwen3_5_moe_nvfp4", 0.09, 0.0155, 0.09, 0.022},
    // Every product: 0.170 and 0.044 a row, 0.0229 in the mean.
    {"gemma4_dense_nvfp4", 0.25, 0.034, 0.25, 0.066},
    // 0.152 and 0.042 a row; one chose another: 0.437, 0.0299 in the mean of two rows.
    {"gemma4_nvfp4_all", 0.5, 0.04, 0.23, 0.063},
};
// CUDA rounds activations to bf16: 0.133 and 0.0140 on gpt-oss; the reference with its activations rounded so is off by
// 0.112 and 0.0102.
constexpr Way kRounded{"cuda", "", 0.2, 0.02};
// Gemma 4's mixtures: 0.32 where another expert was chosen, 0.0133 in the mean; transformers in bf16 is off by up to
// 2.4 (0.10 to 0.99 but for one) and by 0.015 to 0.086 on them.
constexpr Way kRoundedMixture{"cuda", "", 0.4, 0.02};

// A state carries every rounding of a prompt on: 0.130 and 0.0079 on the dense model, whose other figures are as above.
constexpr Way kRoundedState{"cuda", "", 0.2, 0.015};

class Goldens : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    const std::string best = cpu::isa_name();
    restore_ = best;
    if (*way().isa && !cpu::set_isa_for_test(way().isa)) GTEST_SKIP() << "this machine cannot run " << way().isa;
    golden_ = load_golden(std::get<0>(GetParam()));
    EngineSetup setup = test_setup(golden_.directory, way().backend);
    if (std::string(way().backend) == "cuda") {
      if (const Status none = use_cuda(&setup); !none.ok()) GTEST_SKIP() << none.message();
    }
    setup.limits.max_rows = 3;
    setup.limits.context_length = 128;
    setup.limits.chunk_size = 384;
    setup.limits.max_total_tokens = 3 * 128;
    driver_ = std::make_unique<StepDriver>(setup);
    ASSERT_TRUE(driver_->ok());
  }
  void TearDown() override {
    if (!restore_.empty()) cpu::set_isa_for_test(restore_.c_str());
  }
  static bool is(const char* part) { return std::string(std::get<0>(GetParam())).find(part) != std::string::npos; }
  static const Way& way() { return kWays[std::get<1>(GetParam())]; }

  // What is asked of this model.
  static bool four_bits() { return (is("gpt_oss") && !is("gpt_oss_bf16")) || is("nvfp4"); }
  // Of the CPU backend on 4 bits; else null.
  static const Int8* int8() {
    if (std::string(way().backend) != "cpu" || !four_bits()) return nullptr;
    const auto* found = std::ranges::find(kInt8, std::string_view(std::get<0>(GetParam())), &Int8::model);
    CHECK_MSG(found != std::end(kInt8), "a golden in 4 bits without bounds");
    return found;
  }
  static bool gemma_mixture() { return is("gemma4") && !is("dense") && !is("unified"); }
  static bool on_cuda() { return std::string(way().backend) == "cuda"; }
  static bool rounded() { return on_cuda() && four_bits(); }
  static Way tolerance() {
    if (const Int8* of = int8()) return {"cpu", "", of->max_error, of->mean_error};
    if (on_cuda() && gemma_mixture()) return kRoundedMixture;
    if (on_cuda() && is("qwen3_5") && !four_bits()) return kRoundedState;
    return rounded() ? kRounded : way();
  }
  void expect_close(const LogitError& error) {
    if (const Int8* of = int8()) {
      const auto chose_another = [of](const auto& row) {
        return row.first > of->max_row_error || row.second > of->mean_row_error;
      };
      const int64_t allowed = of->max_error > of->max_row_error ? 1 + static_cast<int64_t>(error.rows.size()) / 20 : 0;
      EXPECT_LE(std::count_if(error.rows.begin(), error.rows.end(), chose_another), allowed);
    }
    EXPECT_LE(error.max, tolerance().max_error);
    EXPECT_LE(error.mean(), tolerance().mean_error);
    std::printf("    largest error %.4f, mean %.5f of the spread\n", error.max, error.mean());
  }

  Golden golden_;
  std::unique_ptr<StepDriver> driver_;
  std::string restore_;
};

TEST_P(Goldens, logits_of_whole_prefills) {
  LogitError error;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    const double unit = spread(prompt.logits);
    for (size_t i = 0; i < prompt.positions.size(); ++i) {
      driver_->restart(1);
      driver_->extend(1, {prompt.ids.begin(), prompt.ids.begin() + prompt.positions[i] + 1});
      error.add(prompt.logits_at(i), driver_->run()[0], unit);
    }
  }
  expect_close(error);
}

TEST_P(Goldens, logits_of_chunks) {
  LogitError error;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    const double unit = spread(prompt.logits);
    int32_t begin = 0;
    driver_->restart(0);
    for (size_t i = 0; i < prompt.positions.size(); begin = prompt.positions[i++] + 1) {
      driver_->extend(0, {prompt.ids.begin() + begin, prompt.ids.begin() + prompt.positions[i] + 1});
      error.add(prompt.logits_at(i), driver_->run()[0], unit);
    }
  }
  expect_close(error);
}

// All prompts side by side: the first step extends each by one token, then each decodes its own prompt.
TEST_P(Goldens, logits_of_decode_steps) {
  LogitError error;
  size_t longest = 0;
  for (size_t r = 0; r < golden_.prompts.size(); ++r) {
    longest = std::max(longest, golden_.prompts[r].ids.size());
    driver_->restart(static_cast<int>(r));
    driver_->extend(static_cast<int>(r), {golden_.prompts[r].ids[0]});
  }
  for (size_t at = 0; at < longest; ++at) {
    std::vector<size_t> rows;
    for (size_t r = 0; r < golden_.prompts.size(); ++r) {
      if (at >= golden_.prompts[r].ids.size()) continue;
      rows.push_back(r);
      if (at > 0) driver_->decode(static_cast<int>(r), golden_.prompts[r].ids[at]);
    }
    const auto logits = driver_->run();
    for (size_t i = 0; i < rows.size(); ++i) {
      const GoldenPrompt& prompt = golden_.prompts[rows[i]];
      const auto found = std::find(prompt.positions.begin(), prompt.positions.end(), static_cast<int32_t>(at));
      if (found == prompt.positions.end()) continue;
      error.add(prompt.logits_at(found - prompt.positions.begin()), logits[i], spread(prompt.logits));
    }
  }
  expect_close(error);
}

// A decode row beside an extend row: each as if it were alone.
TEST_P(Goldens, logits_of_a_mixed_step) {
  const GoldenPrompt &one = golden_.prompts[0], &other = golden_.prompts[2];
  driver_->extend(0, {one.ids.begin(), one.ids.end() - 1});
  driver_->run();
  driver_->decode(0, one.ids.back());
  driver_->extend(2, other.ids);
  const auto logits = driver_->run();
  LogitError error;
  error.add(one.logits_at(one.positions.size() - 1), logits[0], spread(one.logits));
  error.add(other.logits_at(other.positions.size() - 1), logits[1], spread(other.logits));
  expect_close(error);
}

// The reference's token is fed whatever was preferred here, which must be the same token beyond twice the tolerance.
TEST_P(Goldens, greedy_continuation) {
  int forced = 0, total = 0;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    const double unit = tolerance().max_error * spread(prompt.logits);
    driver_->restart(0);
    driver_->extend(0, prompt.ids);
    for (size_t i = 0; i < prompt.greedy.size(); ++i, ++total) {
      const std::vector<float> logits = driver_->run()[0];
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (best != prompt.greedy[i]) {
        EXPECT_LE(prompt.margins[i], 2 * unit) << "token " << i;
        ++forced;
      }
      driver_->decode(0, prompt.greedy[i]);
    }
    driver_->run();
  }
  EXPECT_LE(forced, total * (int8() != nullptr ? 5 : 3) / 100);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<const char*, int>>& info) {
  const Way& way = kWays[std::get<1>(info.param)];
  return std::string(std::get<0>(info.param)) + "_" + (*way.isa ? way.isa : way.backend);
}

INSTANTIATE_TEST_SUITE_P(Models, Goldens, ::testing::Combine(::testing::ValuesIn(kGoldenModels), ::testing::Range(0, 5)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Fp8, Goldens, ::testing::Combine(::testing::ValuesIn(kGoldenFp8), ::testing::Range(0, 5)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Gemma4, Goldens,
                         ::testing::Combine(::testing::ValuesIn(kGoldenGemma4), ::testing::Range(0, 5)), case_name);
INSTANTIATE_TEST_SUITE_P(Recurrent, Goldens,
                         ::testing::Combine(::testing::ValuesIn(kGoldenRecurrent), ::testing::Range(0, 5)), case_name);
INSTANTIATE_TEST_SUITE_P(Moe, Goldens, ::testing::Combine(::testing::ValuesIn(kGoldenMoe), ::testing::Range(0, 5)),
                         case_name);

}  // namespace
}  // namespace tailrace
