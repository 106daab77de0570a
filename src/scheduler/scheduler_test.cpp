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
  EXPECT_NE(too_large.message().find("needs 9 KV blocks"), std::string::npos) << too_large.message();
  EXPECT_TRUE(scheduler.admit(make_request(128, 1)).ok());
}

}  // namespace
}  // namespace tailrace
