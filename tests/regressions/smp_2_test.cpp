// SMP-2: seed, penalties and bias belong to their request.
#include <gtest/gtest.h>

#include <algorithm>

#include "sampler/sampler_fixture.h"

namespace tailrace {
namespace {

std::vector<TokenId> sequence(SamplerFixture& row, uint64_t seed, uint32_t choice, int tokens) {
  row.sampling.seed = seed;
  row.sampling.choice_index = choice;
  row.log.assign(static_cast<size_t>(row.sampling.prompt_len), 0);
  for (int i = 0; i < tokens; ++i) row.log.push_back(row.sample().id);
  return {row.log.begin() + row.sampling.prompt_len, row.log.end()};
}

TEST(Smp2, same_seed_same_text_and_choices_differ) {
  SamplerFixture row(std::vector<float>(500, 0.0f));
  row.sampling.prompt_len = 3;
  const auto first = sequence(row, 42, 0, 40);
  EXPECT_EQ(sequence(row, 42, 0, 40), first);
  EXPECT_NE(sequence(row, 42, 1, 40), first);
  EXPECT_NE(sequence(row, 42, 2, 40), sequence(row, 42, 1, 40));
  EXPECT_NE(sequence(row, 43, 0, 40), first);
  EXPECT_NE(sequence(row, 42ull << 32, 0, 40), first);
}

TEST(Smp2, the_draw_does_not_depend_on_what_the_scratch_served_before) {
  SamplerFixture row(std::vector<float>(500, 0.0f));
  const auto alone = sequence(row, 42, 0, 30);
  for (int neighbours = 0; neighbours < 12; ++neighbours) {
    row.sampling.repetition_penalty = 1.5f;
    row.sampling.top_k = 7;
    sequence(row, static_cast<uint64_t>(neighbours), 0, 5);
    row.sampling.repetition_penalty = 1.0f;
    row.sampling.top_k = 0;
    EXPECT_EQ(sequence(row, 42, 0, 30), alone);
  }
}

TEST(Smp2, presence_and_frequency_count_the_output_only) {
  SamplerFixture row({2, 1.9f, 0});
  row.sampling.temperature = 0;
  row.sampling.presence_penalty = 0.5f;
  row.sampling.frequency_penalty = 0.5f;
  row.sampling.prompt_len = 4;
  row.log = {0, 0, 0, 0};
  EXPECT_EQ(row.sample().id, 0);  // four times in the prompt: no matter
  row.log.push_back(0);
  EXPECT_EQ(row.sample().id, 1);
  std::reverse(row.log.begin(), row.log.begin() + 4);
  EXPECT_EQ(row.sample().id, 1);
}

TEST(Smp2, frequency_grows_with_the_count_and_presence_does_not) {
  SamplerFixture row({3, 0});
  row.sampling.temperature = 0;
  row.log = {0, 0, 0, 0, 0, 0};
  row.sampling.frequency_penalty = 0.4f;
  EXPECT_EQ(row.sample().id, 0);  // 3 - 6 * .4 = .6
  row.sampling.frequency_penalty = 0.6f;
  EXPECT_EQ(row.sample().id, 1);  // 3 - 3.6 < 0
  row.sampling.frequency_penalty = 0;
  row.sampling.presence_penalty = 2;
  EXPECT_EQ(row.sample().id, 0);
}

TEST(Smp2, repetition_penalty_covers_prompt_and_output_once_each_and_pushes_negatives_down) {
  SamplerFixture row({2, 1.5f, -1, -1.1f});
  row.sampling.temperature = 0;
  row.sampling.repetition_penalty = 2;
  row.sampling.prompt_len = 3;
  row.log = {0, 0, 0};
  EXPECT_EQ(row.sample().id, 1);  // 2 / 2 = 1, once although seen three times
  row.log = {0, 1, 1};
  EXPECT_EQ(row.sample().id, 0);  // 1 against .75
  row.logits_ = {-5, -5, -1, -1.1f};
  row.log = {2, 2, 2};
  EXPECT_EQ(row.sample().id, 3);  // -1 * 2 = -2
}

TEST(Smp2, a_bias_of_minus_100_bans_from_the_first_token_on) {
  SamplerFixture row({9, 3, 2, 1});
  row.bias_ids = {0};
  row.bias_values = {-100};
  for (float temperature : {0.0f, 1.0f}) {
    row.sampling.temperature = temperature;
    for (const TokenId id : sequence(row, 7, 0, 200)) EXPECT_NE(id, 0);
  }
}

TEST(Smp2, bias_is_added_before_temperature) {
  SamplerFixture row(logits_of({.5, .5}));
  row.bias_ids = {1};
  row.bias_values = {std::log(3.0f)};
  row.sampling.temperature = 0.5f;  // odds 3 to the power 2
  const auto counts = row.histogram(20000);
  EXPECT_LT(chi_square(counts, {.1, .9}, 20000), 10.8);
}

}  // namespace
}  // namespace tailrace
