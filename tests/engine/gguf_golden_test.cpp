// Tiny GGUF files of every quantised type against what transformers computes on their dequantised weights: by decode
// steps, by prompt chunks and along the greedy continuation. What only GGUF does shows here: pairwise q and k,
// rope_freqs.weight, Gemma's norms that hold the +1.
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "support/engine_fixture.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

// Logits of these models spread by about 4. The reference backend differs by 0.004 at worst, 0.001 in the root of the
// mean square; the CPU backend rounds activations to int8: 0.30 and 0.09, and on Gemma 3 0.65 and 0.19.
struct Tolerance {
  double worst, rms;
  double clear_share;  // of the continuation's tokens, at least, have a margin above twice `worst`
};
constexpr Tolerance kExact{0.006, 0.0016, 0.95};
constexpr Tolerance kQuantised{0.45, 0.136, 0.4}, kQuantisedGemma{0.9, 0.27, 0.4};
constexpr Tolerance kCuda{0.3, 0.08, 0.3};  // activations are bf16 between kernels

struct Case {
  const char* model;
  const char* backend;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << " on " << c.backend; }

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* backend : {"reference", "cpu", "cuda"}) {
    for (const char* model : kGoldenGgufs) out.push_back({model, backend});
  }
  return out;
}

class GgufGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    golden_ = load_golden(GetParam().model);
    EngineSetup setup = test_setup(golden_.directory, GetParam().backend);
    if (on("cuda")) {
      if (const Status none = use_cuda(&setup); !none.ok()) GTEST_SKIP() << none.message();
    }
    driver_.emplace(setup);
    ASSERT_TRUE(driver_->ok());
  }

  static bool on(const char* backend) { return std::string(GetParam().backend) == backend; }
  static const Tolerance& tolerance() {
    if (on("cpu")) return std::string_view(GetParam().model) == "gguf_gemma3" ? kQuantisedGemma : kQuantised;
    return on("cuda") ? kCuda : kExact;
  }

  void compare(const std::vector<float>& got, const float* expected, const std::string& where) {
    ASSERT_EQ(got.size(), static_cast<size_t>(golden_.vocab));
    double worst = 0, squares = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
      worst = std::max(worst, error);
      squares += error * error;
    }
    const double rms = std::sqrt(squares / static_cast<double>(got.size()));
    worst_ = std::max(worst_, worst);
    worst_rms_ = std::max(worst_rms_, rms);
    EXPECT_LE(worst, tolerance().worst) << where;
    EXPECT_LE(rms, tolerance().rms) << where;
  }

  Golden golden_;
  std::optional<StepDriver> driver_;
  double worst_ = 0, worst_rms_ = 0;
};

TEST_P(GgufGolden, logits_by_decode_steps) {
  for (size_t p = 0; p < golden_.prompts.size(); ++p) {
    const GoldenPrompt& prompt = golden_.prompts[p];
    const auto logits = driver_->logits_in_chunks(prompt.ids, 1);
    for (size_t i = 0; i < prompt.positions.size(); ++i) {
      compare(logits[prompt.positions[i]], prompt.logits_at(i),
              "prompt " + std::to_string(p) + " position " + std::to_string(prompt.positions[i]));
    }
  }
  RecordProperty("worst", std::to_string(worst_));
  RecordProperty("worst_rms", std::to_string(worst_rms_));
}

TEST_P(GgufGolden, logits_after_a_prompt_in_chunks) {
  for (const int chunk : {7, 16, 64}) {
    for (size_t p = 0; p < golden_.prompts.size(); ++p) {
      const GoldenPrompt& prompt = golden_.prompts[p];
      const auto logits = driver_->logits_in_chunks(prompt.ids, chunk);
      compare(logits.back(), prompt.logits_at(prompt.positions.size() - 1),
              "prompt " + std::to_string(p) + " in chunks of " + std::to_string(chunk));
    }
  }
}

// Wherever the margin exceeds twice the tolerance the token must be the reference's; it is forced in any case, so that
// one close call does not end the comparison.
TEST_P(GgufGolden, greedy_continuation) {
  int compared = 0, total = 0;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    std::vector<float> logits = driver_->logits_in_chunks(prompt.ids, 64).back();
    for (size_t i = 0; i < prompt.greedy.size(); ++i, ++total) {
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (prompt.margins[i] > 2 * tolerance().worst) {
        EXPECT_EQ(best, prompt.greedy[i]) << "token " << i;
        ++compared;
      }
      driver_->decode(0, prompt.greedy[i]);
      logits = driver_->run()[0];
    }
  }
  EXPECT_GE(compared, tolerance().clear_share * total) << "too few tokens with a clear margin";
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.model) + "_" + info.param.backend;
}

INSTANTIATE_TEST_SUITE_P(Models, GgufGolden, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace tailrace
