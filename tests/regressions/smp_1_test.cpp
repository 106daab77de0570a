// SMP-1: greedy is argmax whatever shares the batch; ties and the order of the filters.
#include <gtest/gtest.h>

#include <set>

#include "sampler/sampler_fixture.h"

namespace tailrace {
namespace {

TEST(Smp1, greedy_takes_the_lowest_of_equal_maxima_always) {
  SamplerFixture row({1, 1, 0});
  for (float temperature : {0.0f, 1e-6f, 1e-5f}) {
    row.sampling.temperature = temperature;
    for (int i = 0; i < 100; ++i) {
      row.sampling.seed = static_cast<uint64_t>(i);
      EXPECT_EQ(row.sample().id, 0);
    }
  }
  row.sampling.temperature = 1.5f;
  row.sampling.top_k = 1;
  for (int i = 0; i < 100; ++i) {
    row.sampling.seed = static_cast<uint64_t>(i);
    EXPECT_EQ(row.sample().id, 0);
  }
}

TEST(Smp1, greedy_is_not_disturbed_by_sampled_rows_that_use_the_same_scratch) {
  SamplerFixture row({1, 1, 0, -2, 0.5f, 1, 1, 0.9f});
  for (int i = 0; i < 50; ++i) {
    row.sampling = {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1.3f,
                    .presence_penalty = 1, .frequency_penalty = 1, .top_k = 5, .num_top_logprobs = 3,
                    .seed = static_cast<uint64_t>(i), .choice_index = 0, .prompt_len = 1, .num_bias = 0,
                    .num_stop_ids = 0, .min_len = 0};
    row.log = {0, 1, 1, 5};
    row.sample();
    row.sampling = {.temperature = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .presence_penalty = 0,
                    .frequency_penalty = 0, .top_k = 0, .num_top_logprobs = -1, .seed = 1, .choice_index = 0,
                    .prompt_len = 1, .num_bias = 0, .num_stop_ids = 0, .min_len = 0};
    EXPECT_EQ(row.sample().id, 0);
  }
}

std::set<TokenId> seen(const std::map<TokenId, int>& histogram) {
  std::set<TokenId> ids;
  for (const auto& [id, times] : histogram) ids.insert(id);
  return ids;
}

TEST(Smp1, exactly_k_stay_when_probabilities_tie_at_the_edge) {
  SamplerFixture row(logits_of({.4, .3, .3, 0}));
  row.sampling.top_k = 2;
  EXPECT_EQ(seen(row.histogram(10000)), (std::set<TokenId>{0, 1}));
}

TEST(Smp1, top_p_keeps_the_smallest_set_that_reaches_p) {
  SamplerFixture row(logits_of({.5, .41, .09}));
  row.sampling.top_p = 0.9f;
  EXPECT_EQ(seen(row.histogram(10000)), (std::set<TokenId>{0, 1}));
}

TEST(Smp1, top_p_is_never_empty) {
  SamplerFixture row(logits_of({.5, .41, .09}));
  row.sampling.top_p = 1e-9f;
  EXPECT_EQ(seen(row.histogram(1000)), (std::set<TokenId>{0}));
  SamplerFixture tied(logits_of({.25, .25, .25, .25}));
  tied.sampling.top_p = 0.5f;
  EXPECT_EQ(seen(tied.histogram(1000)), (std::set<TokenId>{0, 1}));
}

TEST(Smp1, top_p_applies_to_what_top_k_left_and_min_p_to_what_top_p_left) {
  SamplerFixture row(logits_of({.3, .25, .25, .1, .1}));
  row.sampling.top_k = 3;      // renormalised: .375, .3125, .3125
  row.sampling.top_p = 0.65f;  // .375 + .3125 reaches it; over all five the third would be needed
  EXPECT_EQ(seen(row.histogram(10000)), (std::set<TokenId>{0, 1}));
  SamplerFixture min_p(logits_of({.5, .3, .15, .05}));
  min_p.sampling.min_p = 0.31f;  // of the largest: .155
  EXPECT_EQ(seen(min_p.histogram(10000)), (std::set<TokenId>{0, 1}));
}

TEST(Smp1, draws_follow_the_probabilities) {
  const std::vector<double> p{.05, .3, .0, .2, .25, .15, .05};
  SamplerFixture row(logits_of(p));
  const auto counts = row.histogram(100000);
  EXPECT_EQ(counts.count(2), 0u);
  EXPECT_LT(chi_square(counts, p, 100000), 20.5);  // 5 degrees of freedom, p = 0.001
}

TEST(Smp1, ids_stay_below_the_vocabulary) {
  SamplerFixture row(std::vector<float>(67, 0.0f));
  for (const auto& [id, times] : row.histogram(20000)) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 67);
  }
}

}  // namespace
}  // namespace tailrace
