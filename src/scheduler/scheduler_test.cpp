#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.kv.block_size = 16;
  config.kv.groups = {{0, 65}};
  config.max_rows = 4;
  config.context_length = 512;
  config.max_step_tokens = 64;
  config.chunk_size = 32;
  config.max_log_patch_tokens = 1024;
  return config;
}

std::shared_ptr<Request> make_request(int32_t prompt_len, int32_t max_tokens, TokenId first = 100) {
  auto request = std::make_shared<Request>();
  request->id = next_request_id();
  for (int32_t i = 0; i < prompt_len; ++i) request->prompt_ids.push_back(first + i);
  request->max_tokens = max_tokens;
  return request;
}

// Launches a plan and gives every row the same token at once.
void run(Scheduler& scheduler, const StepPlan& plan, TokenId token) {
  scheduler.on_launched(plan);
  const std::vector<TokenId> ids(plan.rows.size(), token);
  scheduler.on_result({plan.step, ids});
}

TEST(Scheduler, chunks_a_prompt_then_decodes_to_max_tokens) {
  Scheduler scheduler(small_config());
  ASSERT_TRUE(scheduler.admit(make_request(70, 3)).ok());
  std::vector<int32_t> q_lens;
  std::vector<bool> samples;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.plan_step();
    ASSERT_EQ(plan.rows.size(), 1u);
    q_lens.push_back(plan.rows[0].q_len);
    samples.push_back(plan.rows[0].samples);
    run(scheduler, plan, 7);
    ASSERT_EQ(scheduler.check_invariants(), "");
  }
  EXPECT_EQ(q_lens, (std::vector<int32_t>{32, 32, 6, 1, 1}));
  EXPECT_EQ(samples, (std::vector<bool>{false, false, true, true, true}));
  const std::vector<SequenceUpdate> updates = scheduler.take_updates();
  ASSERT_EQ(updates.size(), 3u);
  EXPECT_TRUE(updates[2].finished);
  EXPECT_EQ(updates[2].finish, FinishReason::kLength);
}

TEST(Scheduler, a_stop_token_is_found_one_step_late_and_its_extra_row_is_dropped) {
  Scheduler scheduler(small_config());
  auto request = make_request(5, 10);
  request->stop_token_ids = {2};
  ASSERT_TRUE(scheduler.admit(request).ok());
  const StepPlan first = scheduler.plan_step();
  scheduler.on_launched(first);
  const StepPlan second = scheduler.plan_step();
  ASSERT_EQ(second.num_decode_rows, 1);
  scheduler.on_launched(second);
  EXPECT_TRUE(scheduler.plan_step().empty());
  const std::vector<TokenId> stop{2}, extra{9};
  scheduler.on_result({first.step, stop});
  EXPECT_TRUE(scheduler.plan_step().empty());
  EXPECT_FALSE(scheduler.idle());
  scheduler.on_result({second.step, extra});
  EXPECT_TRUE(scheduler.idle());
  const auto updates = scheduler.take_updates();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].token, 2);
  EXPECT_EQ(updates[0].finish, FinishReason::kStop);
  EXPECT_EQ(scheduler.stats().generated_tokens, 1u);
}

TEST(Scheduler, refuses_what_can_never_run_and_says_why) {
  SchedulerConfig config = small_config();
  config.kv.groups = {{0, 9}};
  Scheduler scheduler(config);
  EXPECT_EQ(scheduler.admit(make_request(0, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.admit(make_request(5, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.admit(make_request(512, 1)).code(), StatusCode::kInvalidArgument);
  const Status too_large = scheduler.admit(make_request(129, 1));
  EXPECT_EQ(too_large.code(), StatusCode::kTooLarge);
  EXPECT_NE(too_large.message().find("needs 9 KV blocks"), std::string::npos)
      << too_large.message();
  EXPECT_TRUE(scheduler.admit(make_request(128, 1)).ok());
}

TEST(Scheduler, steady_decode_needs_few_patches) {
  SchedulerConfig config = small_config();
  config.kv.groups = {{0, 400}, {64, 100}};
  Scheduler scheduler(config);
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(scheduler.admit(make_request(5 + 3 * i, 450, 1000 * i)).ok());
  int steps = 0, patched = 0, last_patched = -1000;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.plan_step();
    const bool steady = plan.num_decode_rows == 4 && scheduler.stats().generated_tokens > 40;
    run(scheduler, plan, 7);
    if (!steady) continue;
    ++steps;
    if (plan.block_patches.empty()) continue;
    ++patched;
    EXPECT_GE(steps - last_patched, config.blocks_ahead_tokens);
    last_patched = steps;
  }
  EXPECT_GT(steps, 400);
  EXPECT_LE(patched * config.blocks_ahead_tokens, steps + config.blocks_ahead_tokens);
}

TEST(Scheduler, mixing_off_alternates_one_chunk_and_one_decode_step) {
  SchedulerConfig config = small_config();
  config.mixed = MixedMode::kOff;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.admit(make_request(10, 40)).ok());
  run(scheduler, scheduler.plan_step(), 7);
  ASSERT_TRUE(scheduler.admit(make_request(100, 2, 500)).ok());
  std::string kinds;
  for (int i = 0; i < 8; ++i) {
    const StepPlan plan = scheduler.plan_step();
    kinds += plan.num_decode_rows > 0 ? 'd' : 'e';
    EXPECT_TRUE(plan.num_decode_rows == 0 ||
                plan.num_decode_rows == static_cast<int32_t>(plan.rows.size()));
    run(scheduler, plan, 7);
  }
  EXPECT_EQ(kinds, "dededede");
}

// The choices of one prompt wait for the first one's prefill; who shares only the start of a long
// prompt does not.
TEST(Scheduler, waits_for_a_shared_prefix_only_where_that_is_cheaper) {
  SchedulerConfig config = small_config();
  config.chunk_size = 16;
  config.context_length = 1000;
  config.max_log_patch_tokens = 2000;
  config.kv.groups = {{0, 500}};
  Scheduler scheduler(config);
  const auto long_one = make_request(900, 2), twin = make_request(900, 2),
             short_one = make_request(100, 2);
  for (const auto& request : {long_one, twin, short_one})
    ASSERT_TRUE(scheduler.admit(request).ok());
  std::vector<uint64_t> order;
  while (!scheduler.idle()) {
    run(scheduler, scheduler.plan_step(), 7);
    for (const SequenceUpdate& update : scheduler.take_updates()) {
      if (update.finished) order.push_back(update.request->id);
    }
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{short_one->id, long_one->id, twin->id}));
  EXPECT_EQ(twin->stream->cached_len, 896);
  EXPECT_EQ(short_one->stream->cached_len, 0);
}

TEST(Scheduler, the_start_of_a_row_carries_its_whole_prompt_in_the_log) {
  Scheduler scheduler(small_config());
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(scheduler.admit(make_request(70, 1)).ok());
    std::vector<TokenId> log;
    int starts = 0;
    while (!scheduler.idle()) {
      const StepPlan plan = scheduler.plan_step();
      starts += static_cast<int>(plan.starts.size());
      for (const LogPatch& patch : plan.log_patches) {
        ASSERT_EQ(patch.first, static_cast<int32_t>(log.size()));
        log.insert(log.end(), patch.ids.begin(), patch.ids.end());
      }
      run(scheduler, plan, 7);
    }
    EXPECT_EQ(starts, 1);
    EXPECT_EQ(log, make_request(70, 1)->prompt_ids);  // the second time 64 of them are cached
  }
  EXPECT_EQ(scheduler.stats().cached_tokens, 64u);
}

TEST(Scheduler, min_tokens_keeps_a_stop_token_from_ending_the_answer) {
  Scheduler scheduler(small_config());
  auto request = make_request(5, 10);
  request->stop_token_ids = {2};
  request->min_tokens = 3;
  ASSERT_TRUE(scheduler.admit(request).ok());
  while (!scheduler.idle()) run(scheduler, scheduler.plan_step(), 2);
  const auto updates = scheduler.take_updates();
  ASSERT_EQ(updates.size(), 4u);  // three tokens, then the first that may end it
  EXPECT_EQ(updates.back().finish, FinishReason::kStop);
}

// A slab has room for so many: one more would be a failed check for all requests of the step.
TEST(Scheduler, more_stop_ids_or_biases_than_a_row_holds_are_refused) {
  Scheduler scheduler(small_config());
  auto request = make_request(4, 2);
  request->stop_token_ids.assign(kMaxStopTokenIds + 1, 7);
  EXPECT_EQ(scheduler.admit(request).message(), "65 stop token ids, at most 64 are taken");
  request = make_request(4, 2);
  request->sampling.logit_bias.assign(kMaxLogitBias + 1, {7, 1.0f});
  EXPECT_EQ(scheduler.admit(request).message(), "1025 logit_bias entries, at most 1024 are taken");
}

// A step that keeps a recurrent state, or hands out blocks, sends the device a slab of its own.
TEST(Scheduler, decode_rows_with_recurrent_states_rarely_need_a_slab) {
  SchedulerConfig config;
  config.kv.block_size = 16;
  config.kv.groups = {{0, 64 * 760}};
  config.kv.states = {.recurrent = true, .num_checkpoints = 256, .checkpoint_interval = 2048, .checkpoint_min_tokens = 128};
  config.max_rows = 64;
  config.context_length = 16384;
  config.max_step_tokens = 64 + 512, config.chunk_size = 512, config.max_log_patch_tokens = 32768;
  constexpr int kSteps = 9000;
  Scheduler scheduler(config);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(scheduler.admit(make_request(20 + 29 * i, 10000, 1000 * i)).ok());
  int steps = 0, slabs = 0, saves = 0;
  while (steps < kSteps) {
    const StepPlan plan = scheduler.plan_step();
    ASSERT_FALSE(plan.rows.empty());
    if (plan.num_decode_rows == 64) {
      bool saved = false;
      for (const PlanRow& row : plan.rows) saved |= row.state_save > 0;
      ++steps, saves += saved, slabs += saved || !plan.block_patches.empty();
    }
    run(scheduler, plan, 7);
    scheduler.take_updates();
  }
  EXPECT_LE(slabs * 32, steps);
  EXPECT_GT(saves, 0) << "they are kept all the same";
}

}  // namespace
}  // namespace tailrace
