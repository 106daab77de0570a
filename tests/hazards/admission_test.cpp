// Hazards 16, 17: what admission counts, and that throughput comes back after a preemption.
#include <random>

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
// step that preempts them.
TEST(Hazard17, a_row_preempted_while_chunks_are_dealt_gets_none) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  uint64_t preemptions = 0;
  for (int run = 0; run < 400; ++run) {
    const int inflight = run % 2;
    SchedulerConfig config = scenario_config(pick(40, 90));
    config.kv.block_size = 4;
    config.kv.prefix_cache = pick(0, 1) == 1;
    config.max_rows = pick(5, 7);
    config.context_length = 256;
    config.chunk_size = pick(2, 8) * 2;
    config.max_step_tokens = config.chunk_size + config.max_rows;
    config.blocks_ahead_tokens = 0;
    config.cost = {1000, 1, 0.001, 1, 0.0001};
    SimEngine engine(config);
    int family = 1;
    const auto add = [&](int prompt, int output) {
      auto request = make_request(family_tokens(family++, prompt), output);
      request->stop_token_ids.clear();
      (void)engine.admit(request);  // too large for this pool: refused, which is fine here
    };
    const auto turns = [&](int count) {
      for (int i = 0; i < count; ++i) engine.turn(inflight);
    };
    add(pick(80, 160), 2);
    turns(1);
    for (int i = pick(1, 3); i > 0; --i) add(pick(2, 6), pick(40, 90));
    turns(pick(1, 12));
    add(pick(30, 60), 4);
    turns(pick(0, 6));
    add(pick(10, 40), 4);
    turns(pick(0, 6));
    add(pick(8, 20), 4);
    engine.run_until_idle(inflight);
    ASSERT_EQ(engine.violation(), "") << "run " << run;
    preemptions += engine.scheduler().stats().preemptions;
  }
  EXPECT_GT(preemptions, 100u);
}

TEST(Hazard17, throughput_recovers_after_preemption) {
  expect_guarded(Fault::kNoPreemptBackoff, a_burst_of_long_answers);
}

}  // namespace
}  // namespace tailrace
