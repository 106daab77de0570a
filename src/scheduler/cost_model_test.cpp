#include "scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tailrace {
namespace {

CostModel model() { return {.base_us = 200, .decode_row_us = 50, .decode_kv_us = 0.01, .extend_token_us = 40, .extend_pair_us = 0.005}; }

TEST(CostModel, predicts_the_sum_of_its_terms) {
  EXPECT_DOUBLE_EQ(model().predict_us({}), 200);
  EXPECT_DOUBLE_EQ(model().predict_us({4, 1000, 0, 0}), 200 + 4 * 50 + 10);
  EXPECT_DOUBLE_EQ(model().predict_us({.extend_tokens = 16, .extend_kv_pairs = 2000}), 200 + 16 * 40 + 10);
  CostModel all = model();
  all.extend_base_us = 30, all.extend_kv_us = 0.1;
  EXPECT_DOUBLE_EQ(all.predict_us({.extend_tokens = 16, .extend_kv_tokens = 70, .extend_kv_pairs = 2000}), 200 + 30 + 16 * 40 + 7 + 10);
  EXPECT_DOUBLE_EQ(all.predict_us({.decode_rows = 4, .decode_kv_tokens = 1000}), 200 + 4 * 50 + 10) << "no extend rows";
}

TEST(CostModel, the_largest_chunk_fits_and_one_token_more_does_not) {
  const StepShape decode{.decode_rows = 4, .decode_kv_tokens = 4000};
  CostModel cost = model();
  cost.extend_base_us = 30, cost.extend_kv_us = 0.002;
  for (const int64_t computed : {0, 100, 10000, 200000}) {
    for (const double ratio : {4.0, 20.0}) {
      const double budget = ratio * cost.predict_us(decode);
      const int32_t tokens = cost.max_extend_tokens(decode, computed, budget, 100000);
      const auto with = [&](int32_t n) {
        StepShape shape = decode;
        shape.extend_tokens = n;
        shape.extend_kv_tokens = computed;
        shape.extend_kv_pairs = n * (computed + n / 2);
        return cost.predict_us(shape);
      };
      EXPECT_LE(with(tokens), budget);
      EXPECT_GT(with(tokens + 2), budget)
          << computed << " " << ratio;  // the closed form may be one short
    }
  }
}

TEST(CostModel, keeps_to_the_limit_and_to_nothing) {
  const StepShape decode{1, 10, 0, 0};
  EXPECT_EQ(model().max_extend_tokens(decode, 0, 1e9, 512), 512);
  EXPECT_EQ(model().max_extend_tokens(decode, 0, 100, 512), 0);
  EXPECT_EQ(model().max_extend_tokens(decode, 0, 1e9, 0), 0);
  CostModel free_extend = model();
  free_extend.extend_token_us = free_extend.extend_pair_us = 0;
  EXPECT_EQ(free_extend.max_extend_tokens(decode, 0, 1e6, 512), 512);
}

TEST(CostModel, observations_correct_it_slowly) {
  CostModel truth{.base_us = 400, .decode_row_us = 20, .decode_kv_us = 0.02, .extend_token_us = 80, .extend_pair_us = 0.001};
  CostModel learned = model();
  const StepShape decode{.decode_rows = 8, .decode_kv_tokens = 8000};
  const StepShape mixed{.decode_rows = 8, .decode_kv_tokens = 8000, .extend_tokens = 200, .extend_kv_pairs = 60000};
  learned.observe(decode, truth.predict_us(decode));
  EXPECT_NEAR(learned.base_us, 200, 200 * 0.03);  // one step alone moves little
  for (int i = 0; i < 1000; ++i) {
    for (int j = 0; j < 2; ++j) learned.observe(decode, truth.predict_us(decode));
    learned.observe(mixed, truth.predict_us(mixed));
  }
  EXPECT_NEAR(learned.predict_us(decode), truth.predict_us(decode),
              0.02 * truth.predict_us(decode));
  EXPECT_NEAR(learned.predict_us(mixed), truth.predict_us(mixed), 0.02 * truth.predict_us(mixed));
}

TEST(CostModel, a_decode_step_right_after_a_chunk_teaches_nothing) {
  CostModel learned = model();
  const StepShape decode{.decode_rows = 1, .decode_kv_tokens = 1000}, mixed{.decode_rows = 1, .extend_tokens = 10};
  for (int i = 0; i < 100; ++i) {
    learned.observe(mixed, learned.predict_us(mixed));
    learned.observe(decode, 2 * model().predict_us(decode));
  }
  EXPECT_DOUBLE_EQ(learned.predict_us(decode), model().predict_us(decode));
  learned.observe(decode, 2 * model().predict_us(decode));
  EXPECT_GT(learned.predict_us(decode), model().predict_us(decode));
}

TEST(CostModel, one_overrun_may_be_noise_two_are_learned_quickly) {
  const StepShape mixed{.decode_rows = 1, .extend_tokens = 10};
  CostModel noisy = model(), slower = model();
  for (CostModel* cost : {&noisy, &slower}) cost->observe(mixed, 3 * model().predict_us(mixed));
  noisy.observe(mixed, noisy.predict_us(mixed) - 1);
  slower.observe(mixed, 3 * model().predict_us(mixed));
  EXPECT_LT(noisy.predict_us(mixed), 1.03 * model().predict_us(mixed));
  EXPECT_GT(slower.predict_us(mixed), 1.06 * model().predict_us(mixed));
}

TEST(CostModel, nonsense_is_not_learned) {
  CostModel learned = model();
  for (const double bad : {0.0, -5.0, std::nan(""), HUGE_VAL}) learned.observe({1, 1, 0, 0}, bad);
  EXPECT_EQ(learned.base_us, model().base_us);
  learned.observe({1, 100, 10, 100}, 1.0);  // faster than its decode part alone: bounded below
  EXPECT_GT(learned.extend_token_us, 0.9 * model().extend_token_us);
}

}  // namespace
}  // namespace tailrace
