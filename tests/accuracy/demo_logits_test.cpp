// Real weights: the demo model's distributions over 512 fixed tokens against llama.cpp's on the same file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "accuracy/demo_model.h"
#include "support/engine_fixture.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

// llama.cpp's distribution after one token: its most likely tokens, best first, and the mass of all others.
struct Position {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  float rest_logprob = 0;
};

struct Reference {
  std::vector<TokenId> tokens;
  std::vector<Position> positions;
};

// The format is stated in tools/make_demo_reference.py.
Reference load_reference() {
  std::ifstream file(demo_golden_path("logits.bin"), std::ios::binary);
  uint32_t header[5] = {};
  file.read(reinterpret_cast<char*>(header), sizeof header);
  EXPECT_EQ(std::memcmp(header, "TRLG", 4), 0);
  EXPECT_EQ(header[1], 1u);
  Reference reference;
  reference.tokens.resize(header[2]);
  file.read(reinterpret_cast<char*>(reference.tokens.data()), header[2] * 4);
  for (uint32_t i = 0; i < header[2]; ++i) {
    Position position{std::vector<int32_t>(header[3]), std::vector<float>(header[3])};
    file.read(reinterpret_cast<char*>(position.ids.data()), header[3] * 4);
    file.read(reinterpret_cast<char*>(position.logprobs.data()), header[3] * 4);
    file.read(reinterpret_cast<char*>(&position.rest_logprob), 4);
    reference.positions.push_back(std::move(position));
  }
  EXPECT_TRUE(file.good());
  return reference;
}

// KL(llama || ours) over the reference's tokens and the rest taken together.
double divergence(const Position& position, const std::vector<float>& logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - peak);
  const double log_sum = peak + std::log(sum);
  double kl = 0, listed = 0;
  for (size_t i = 0; i < position.ids.size(); ++i) {
    const double ours = logits[position.ids[i]] - log_sum;
    kl += std::exp(position.logprobs[i]) * (position.logprobs[i] - ours);
    listed += std::exp(ours);
  }
  const double rest = std::log(std::max(1e-12, 1 - listed));
  return kl + std::exp(position.rest_logprob) * (position.rest_logprob - rest);
}

// Rounding alone decides close calls: two builds of equal KL gave 96.1 and 94.5 %, llama.cpp gives 94.9 % of its own answers with
// flash attention and 94.0 % token by token. Where it is not close, the answer must be the same.
constexpr double kMinTop1 = 0.93, kClearMargin = 0.2, kMinClearTop1 = 0.995;

class DemoLogits : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_DEMO_MODEL();
    reference_ = load_reference();
    ASSERT_EQ(reference_.tokens.size(), 512u);
    EngineSetup setup = test_setup(demo_model_path());
    setup.limits.max_rows = 1;
    setup.limits.max_total_tokens = 1024;
    driver_ = std::make_unique<StepDriver>(setup);
    ASSERT_TRUE(driver_->ok());
  }

  // Compares the distribution after every `chunk` tokens, and states the figures.
  void compare(int chunk) {
    const auto logits = driver_->logits_in_chunks(reference_.tokens, chunk);
    double kl = 0;
    int agree = 0, clear = 0, agree_clear = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const Position& position = reference_.positions[(i + 1) * chunk - 1];
      kl += divergence(position, logits[i]);
      const bool same = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin() == position.ids[0];
      agree += same;
      if (position.logprobs[0] - position.logprobs[1] < kClearMargin) continue;
      ++clear;
      agree_clear += same;
    }
    const auto count = static_cast<double>(logits.size());
    std::printf("    %zu positions, chunks of %d: mean KL %.5f, top-1 agreement %.2f %%, %d of the %d that are not close\n",
                logits.size(), chunk, kl / count, 100 * agree / count, agree_clear, clear);
    EXPECT_LE(kl / count, 0.02);
    EXPECT_GE(kl / count, -1e-6);
    // The goal of 97 % is not reached on this text, nor by llama.cpp against itself. Few positions leave room for two close calls.
    EXPECT_GE(agree, std::min(kMinTop1 * count, count - 2));
    EXPECT_GE(agree_clear, kMinClearTop1 * clear);
  }

  Reference reference_;
  std::unique_ptr<StepDriver> driver_;
};

TEST_F(DemoLogits, decode_steps) { compare(1); }
TEST_F(DemoLogits, chunks_of_eight) { compare(8); }
TEST_F(DemoLogits, chunks_of_sixty_four) { compare(64); }

}  // namespace
}  // namespace tailrace
