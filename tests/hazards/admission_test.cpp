// Hazards 16, 17: what admission counts, and that throughput comes back after a preemption.
#include "hazards/guarded.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

// Two prompts of 2 tokens, one block of 128: blocks are handed out whole, so the second waits.
std::string two_short_prompts_one_block() {
  SchedulerConfig config = scenario_config(1);
  config.kv.block_size = 128;
  SimEngine engine(config);
  EXPECT_TRUE(engine.admit(make_request(family_tokens(1, 2), 4)).ok());
  EXPECT_TRUE(engine.admit(make_request(family_tokens(2, 2), 4)).ok());
  while (!engine.scheduler().idle() && engine.violation().empty()) {
    engine.turn(1);
    if (engine.scheduler().stats().running > 1) return "two rows run on one block";
  }
  return engine.violation();
}
TEST(Hazard16, admission_counts_blocks) {
  expect_guarded(Fault::kAdmitByTokens, two_short_prompts_one_block);
}

// The full group has room for all, the window group for one row in prefill.
TEST(Hazard16, admission_counts_blocks_of_every_group) {
  SchedulerConfig config = scenario_config(100);
  config.kv.groups.push_back({32, 8});
  SimEngine engine(config);
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(engine.admit(make_request(family_tokens(i, 100), 4)).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.scheduler().stats().preemptions, 0u);
}

TEST(Hazard16, what_is_larger_than_a_pool_is_refused_with_numbers) {
  SchedulerConfig config = scenario_config(10);
  config.kv.groups.push_back({32, 5});
  SimEngine engine(config);
  const Status full = engine.admit(make_request(family_tokens(1, 81), 4));
  EXPECT_EQ(full.code(), StatusCode::kTooLarge);
  EXPECT_NE(full.message().find("81 tokens needs 11 KV blocks of group 0, whose pool has 10"),
            std::string::npos)
      << full.message();
  const Status window = engine.admit(make_request(family_tokens(1, 60), 4));
  EXPECT_EQ(window.code(), StatusCode::kTooLarge);
  EXPECT_NE(window.message().find("group 1"), std::string::npos) << window.message();
}

TEST(Hazard16, a_lone_row_that_cannot_grow_ends_and_others_go_on) {
  SimEngine engine(scenario_config(4));
  const auto lone = make_request(family_tokens(1, 20), 100);
  const auto next = make_request(family_tokens(2, 10), 5);
  ASSERT_TRUE(engine.admit(lone).ok() && engine.admit(next).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.answer(*lone).finish, FinishReason::kLength);
  EXPECT_EQ(engine.answer(*lone).tokens.size(),
            13u);  // 32 tokens have KV, one more was sampled from them
  EXPECT_EQ(engine.answer(*next).tokens.size(), 5u);
}

// More answers at once than the pool holds: after the first preemptions, few tokens may be computed
// twice.
std::string a_burst_of_long_answers() {
  SchedulerConfig config = scenario_config(40);
  config.max_rows = 8;
  config.kv.prefix_cache = false;  // a preempted row finds nothing cached
  SimEngine engine(config);
  for (int i = 0; i < 60; ++i)
    EXPECT_TRUE(engine.admit(make_request(family_tokens(i, 12), 80)).ok());
  engine.run_until_idle(1);
  const double useful = 60.0 * (12 + 79);
  const double waste = engine.computed_tokens() / useful - 1;
  if (!engine.violation().empty()) return engine.violation();
  return waste > 0.2 ? "recomputed " + std::to_string(waste) + " of all tokens, " +
                           std::to_string(engine.scheduler().stats().preemptions) + " preemptions"
                     : "";
}
// An old row in a long prefill makes room by preempting younger rows that are in prefill too: those get no further chunk in the
// step that preempts them. (Without the guard the planner's CHECK ends the process.)
TEST(Hazard17, a_row_preempted_while_chunks_are_dealt_gets_none) {
  for (const int inflight : {0, 1}) {
    SchedulerConfig config = scenario_config(47);
    config.kv.block_size = 4;
    config.max_rows = 5;
    config.context_length = 256;
    config.chunk_size = 8;
    config.max_step_tokens = config.chunk_size + config.max_rows;
    config.blocks_ahead_tokens = 0;
    config.cost = {.base_us = 1000, .decode_row_us = 1, .decode_kv_us = 0.001, .extend_token_us = 1, .extend_pair_us = 0.0001};
    SimEngine engine(config);
    int family = 1;
    const auto add = [&](int prompt, int output) {
      auto request = make_request(family_tokens(family++, prompt), output);
      request->stop_token_ids.clear();
      EXPECT_TRUE(engine.admit(request).ok());
    };
    add(105, 2);  // the old row: a prefill of more than half of the pool
    engine.turn(inflight);
    add(3, 55);  // short prompts that decode past their reserve
    add(4, 57);
    engine.turn(inflight);
    add(55, 4);  // younger prompts in prefill
    add(40, 4);
    add(12, 4);
    engine.run_until_idle(inflight);
    EXPECT_EQ(engine.violation(), "") << "in flight " << inflight;
    EXPECT_GT(engine.scheduler().stats().preemptions, 0u);
  }
}

TEST(Hazard17, throughput_recovers_after_preemption) {
  expect_guarded(Fault::kNoPreemptBackoff, a_burst_of_long_answers);
}

}  // namespace
}  // namespace tailrace
