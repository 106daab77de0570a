// CHK-2: a long prompt does not freeze the streams beside it, and is not starved by them.
#include <gtest/gtest.h>

#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

SchedulerConfig long_config() {
  SchedulerConfig config = scenario_config(12000);
  config.max_rows = 24;
  config.context_length = 40000;
  config.chunk_size = 2048;
  config.max_step_tokens = 2048 + 24;
  config.max_log_patch_tokens = 40000 + config.max_step_tokens;
  // A decode-only step of one row: about 600 us.
  config.cost = {.base_us = 500, .decode_row_us = 100, .decode_kv_us = 0.01, .extend_token_us = 20, .extend_pair_us = 0.001};
  return config;
}

bool decodes(const StepPlan& plan, const Request& request) {
  for (int32_t i = 0; i < plan.num_decode_rows; ++i) {
    if (plan.rows[i].request_id == request.id) return true;
  }
  return false;
}

// Runs until `prompts` have their first token; every step must hold the victim's row and keep to
// the ratio.
void expect_no_freeze(SimEngine& engine, const Request& victim,
                      const std::vector<std::shared_ptr<Request>>& prompts) {
  const double ratio = SchedulerConfig{}.max_mixed_ratio;
  for (const auto& prompt : prompts) {
    while (engine.answer(*prompt).tokens.empty()) {
      engine.turn(1);
      ASSERT_EQ(engine.violation(), "");
      ASSERT_TRUE(decodes(engine.last_plan(), victim));
      const StepPlan& plan = engine.last_plan();
      ASSERT_LE(plan.predicted_us, ratio * plan.decode_only_us + 1e-6) << "step " << plan.step;
    }
  }
}

TEST(Chk2, a_30k_prompt_beside_one_stream) {
  SimEngine engine(long_config());
  const auto victim = make_request(family_tokens(1, 10), 9000);
  ASSERT_TRUE(engine.admit(victim).ok());
  for (int i = 0; i < 5; ++i) engine.turn(1);
  const auto prompt = make_request(family_tokens(2, 30000), 3);
  ASSERT_TRUE(engine.admit(prompt).ok());
  expect_no_freeze(engine, *victim, {prompt});
  EXPECT_EQ(engine.scheduler().stats().floor_steps, 0u);
}

TEST(Chk2, twenty_long_prompts_in_a_row) {
  SimEngine engine(long_config());
  const auto victim = make_request(family_tokens(1, 10), 9000);
  ASSERT_TRUE(engine.admit(victim).ok());
  for (int i = 0; i < 5; ++i) engine.turn(1);
  std::vector<std::shared_ptr<Request>> prompts;
  for (int i = 0; i < 20; ++i) {
    prompts.push_back(make_request(family_tokens(2 + i, 3000), 3));
    ASSERT_TRUE(engine.admit(prompts.back()).ok());
  }
  expect_no_freeze(engine, *victim, prompts);
}

// Tight costs: even the smallest chunk exceeds the ratio. It rides with every second step at most,
// and never stops.
TEST(Chk2, a_long_prompt_is_not_starved_by_sixteen_streams) {
  SchedulerConfig config = long_config();
  config.cost = {.base_us = 10, .decode_row_us = 1, .decode_kv_us = 0, .extend_token_us = 100, .extend_pair_us = 0.001};
  SimEngine engine(config);
  for (int i = 0; i < 16; ++i)
    ASSERT_TRUE(engine.admit(make_request(family_tokens(i, 10), 3000)).ok());
  while (engine.scheduler().stats().generated_tokens < 100) engine.turn(1);
  const auto prompt = make_request(family_tokens(99, 500), 3);
  ASSERT_TRUE(engine.admit(prompt).ok());
  bool mixed_before = false;
  int steps = 0;
  while (engine.answer(*prompt).tokens.empty()) {
    engine.turn(1);
    ASSERT_EQ(engine.violation(), "");
    const StepPlan& plan = engine.last_plan();
    ASSERT_GE(plan.num_decode_rows, 16);
    const bool mixed = static_cast<int32_t>(plan.rows.size()) > plan.num_decode_rows;
    ASSERT_FALSE(mixed && mixed_before);
    mixed_before = mixed;
    ASSERT_LT(++steps, 500 * 2 + 4);
  }
  EXPECT_EQ(engine.scheduler().stats().floor_steps, 500u / 4);
}

TEST(Chk2, a_short_prompt_does_not_wait_for_the_whole_of_a_long_one) {
  SchedulerConfig config = long_config();
  config.chunk_size = 512;
  SimEngine engine(config);
  const auto long_one = make_request(family_tokens(1, 30000), 3),
             other_long = make_request(family_tokens(2, 30000), 3);
  const auto short_one = make_request(family_tokens(3, 400), 3);
  for (const auto& request : {long_one, other_long, short_one})
    ASSERT_TRUE(engine.admit(request).ok());
  int steps = 0;
  while (engine.answer(*short_one).tokens.empty()) {
    engine.turn(1);
    ASSERT_LT(++steps, 6);
  }
  EXPECT_TRUE(engine.answer(*long_one).tokens.empty());
}

}  // namespace
}  // namespace tailrace
