// Expected values are transformers 5.24's ROPE_INIT_FUNCTIONS (float32), or a public report's where they say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/model_config.h"

namespace tailrace {
namespace {

void expect_frequencies(const RopeConfig& rope, const std::vector<std::pair<int, double>>& expected) {
  const std::vector<float> got = rope_inv_freq(rope);
  ASSERT_EQ(got.size(), static_cast<size_t>(rope.rotary_dim / 2));
  for (const auto& [i, value] : expected) EXPECT_NEAR(got[i] / value, 1.0, 1e-6) << "index " << i;
}

// gpt-oss: theta 150000, 64 dims, factor 32 of 4096.
RopeConfig yarn(bool truncate) {
  RopeConfig rope;
  rope.theta = 150000;
  rope.rotary_dim = 64;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32;
  rope.original_context = 4096;
  rope.truncate = truncate;
  return rope;
}

TEST(Rope, plain) {
  RopeConfig rope;
  rope.theta = 10000;
  rope.rotary_dim = 8;
  expect_frequencies(rope, {{0, 1.0}, {1, 0.1}, {2, 0.01}, {3, 0.001}});
}

TEST(Rope, linear_divides_all) {
  RopeConfig rope;
  rope.theta = 1e6;
  rope.rotary_dim = 16;
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 8;
  expect_frequencies(rope, {{0, 0.125}, {1, 0.0222284924}, {4, 0.000125000006}, {7, 7.02926684e-07}});
}

TEST(Rope, llama3_keeps_high_and_slows_low_frequencies) {
  RopeConfig rope;
  rope.theta = 500000;
  rope.rotary_dim = 128;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_context = 8192;
  expect_frequencies(rope, {{0, 1.0},
                            {1, 0.814617217},
                            {20, 0.0165604409},
                            {28, 0.00321144611},
                            {29, 0.00216657063},
                            {32, 0.000524846022},
                            {35, 9.55621217e-05},
                            {40, 3.42810235e-05},
                            {63, 3.06892588e-07}});
}

TEST(Rope, yarn_range_of_the_report) {
  EXPECT_NEAR(yarn_range(yarn(false)).low, 8.0928, 5e-5);
  EXPECT_NEAR(yarn_range(yarn(false)).high, 17.3980, 5e-5);
  EXPECT_EQ(yarn_range(yarn(true)).low, 8.0);
  EXPECT_EQ(yarn_range(yarn(true)).high, 18.0);
}

TEST(Rope, yarn_untruncated) {
  expect_frequencies(yarn(false), {{0, 1.0},
                                   {8, 0.0508132726},
                                   {9, 0.0317056961},
                                   {12, 0.00679495931},
                                   {16, 0.000456483918},
                                   {17, 0.000129318694},
                                   {18, 3.83088118e-05},
                                   {31, 3.0235114e-07}});
}

TEST(Rope, yarn_truncated) {
  expect_frequencies(yarn(true), {{8, 0.0508132726},
                                  {9, 0.0316207521},
                                  {12, 0.00701571396},
                                  {16, 0.000580947497},
                                  {17, 0.000227947836},
                                  {31, 3.0235114e-07}});
}

// All 32 indices of gpt-oss by the formula of the YaRN paper in float64, "by parts": full turns within the original
// context decide between the plain frequency and the one divided by the factor.
TEST(Rope, yarn_equals_its_formula_in_float64) {
  for (const bool truncate : {false, true}) {
    const std::vector<float> got = rope_inv_freq(yarn(truncate));
    const auto index_of_turns = [](double turns) {
      return 64 * std::log(4096 / (turns * 2 * M_PI)) / (2 * std::log(150000.0));
    };
    const double low = truncate ? std::floor(index_of_turns(32)) : index_of_turns(32);
    const double high = truncate ? std::ceil(index_of_turns(1)) : index_of_turns(1);
    for (int i = 0; i < 32; ++i) {
      const double plain = std::pow(150000.0, -2.0 * i / 64), ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      const double expected = plain * (1 - ramp) + plain / 32 * ramp;
      EXPECT_NEAR(got[i] / expected, 1, 6e-8) << "index " << i << ", truncate " << truncate;  // one rounding to fp32
    }
  }
}

TEST(Rope, yarn_attention_factor) {
  EXPECT_NEAR(yarn_attention_factor(32), 1.34657359, 1e-8);
  EXPECT_EQ(yarn_attention_factor(1), 1.0);
  EXPECT_NEAR(yarn_attention_factor(40, 0.707), 0.1 * 0.707 * std::log(40.0) + 1, 1e-12);
}

TEST(Rope, divisors) {
  RopeConfig rope;
  rope.theta = 10000;
  rope.rotary_dim = 8;
  rope.scaling = RopeScaling::kDivisors;
  rope.divisors = {1, 2, 4, 8};
  expect_frequencies(rope, {{0, 1.0}, {1, 0.05}, {2, 0.0025}, {3, 0.000125}});
}

}  // namespace
}  // namespace tailrace
