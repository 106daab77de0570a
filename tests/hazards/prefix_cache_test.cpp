// Hazards 4, 6, 8, 12: what the tree may hold, and what a match may use.
#include "hazards/guarded.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

// The answer ends at a block's last token, whose KV nobody computed; the next turn of the
// conversation reads it.
std::string next_turn_after_max_tokens() {
  SimEngine engine(scenario_config(20));
  const auto first = make_request(family_tokens(1, 5), 11);  // 16 tokens: two blocks
  EXPECT_TRUE(engine.admit(first).ok());
  engine.run_until_idle(1);
  const auto second = make_request(next_turn(*first, predict_answer(*first, 11), {7, 8, 9}), 4);
  EXPECT_TRUE(engine.admit(second).ok());
  engine.run_until_idle(1);
  if (engine.violation().empty() && second->stream->cached_len != 8)
    return "the cached length is not one block";
  return engine.violation();
}
TEST(Hazard4, the_last_sampled_token_is_not_cached) {
  expect_guarded(Fault::kInsertUnwritten, next_turn_after_max_tokens);
}

// A step was planned behind the stop token, but the device left the row out: that token has no KV.
std::string next_turn_after_a_stop_token() {
  SimEngine engine(scenario_config(20));
  auto first = make_request(family_tokens(1, 11), 40);
  stop_at(*first, 4);  // 16 tokens: two blocks
  EXPECT_TRUE(engine.admit(first).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.answer(*first).finish, FinishReason::kStop);
  const auto second = make_request(next_turn(*first, predict_answer(*first, 5), {7, 8, 9}), 4);
  EXPECT_TRUE(engine.admit(second).ok());
  engine.run_until_idle(1);
  if (engine.violation().empty() && second->stream->cached_len != 8) return "the cached length is not one block";
  return engine.violation();
}
TEST(Hazard4, a_stop_token_is_not_cached) { expect_guarded(Fault::kInsertUnwritten, next_turn_after_a_stop_token); }

// Two rows compute the same prompt in the same steps; one of them must end up on the other's
// blocks.
std::string same_prompt_twice_at_once() {
  SchedulerConfig config = scenario_config(30);
  config.chunk_size = 64;
  SimEngine engine(config);
  const auto a = make_request(family_tokens(1, 30), 20);
  EXPECT_TRUE(engine.admit(a).ok() && engine.admit(copy_of(*a)).ok());
  engine.turn(1);
  if (!engine.violation().empty()) return engine.violation();
  if (engine.last_plan().rows.size() != 2) return "the scenario did not run both at once";
  engine.turn(1);
  engine.turn(1);
  // 3 shared blocks, and two for each row's tail of at most 16 tokens; what was duplicated is free
  // again.
  if (engine.violation().empty() && engine.scheduler().stats().kv[0].owned > 3 + 2 * 2)
    return "duplicates are kept";
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard6, blocks_that_duplicate_the_trees_are_freed_and_the_row_repointed) {
  expect_guarded(Fault::kKeepDuplicateBlocks, same_prompt_twice_at_once);
}

// A's query at position 22 still sees position 7, the last of its first block; B's first chunk
// takes whatever block is free.
std::string window_edge() {
  SchedulerConfig config = scenario_config(60);
  config.kv.groups.push_back({16, 30});
  config.kv.prefix_cache = false;
  SimEngine engine(config);
  EXPECT_TRUE(engine.admit(make_request(family_tokens(1, 22), 10)).ok());
  engine.turn(0);
  engine.turn(0);
  EXPECT_TRUE(engine.admit(make_request(family_tokens(2, 8), 2)).ok());
  engine.run_until_idle(0);
  return engine.violation();
}
TEST(Hazard8, a_block_leaves_with_its_last_visible_token) {
  expect_guarded(Fault::kWindowOffByOne, window_edge);
}

// The window group forgot the middle of A's prompt, where B branches off.
std::string branch_inside_a_cached_prompt() {
  SchedulerConfig config = scenario_config(60);
  config.kv.groups.push_back({16, 40});
  SimEngine engine(config);
  EXPECT_TRUE(engine.admit(make_request(family_tokens(1, 100), 4)).ok());
  engine.run_until_idle(1);
  std::vector<TokenId> branch = family_tokens(1, 40);
  branch.insert(branch.end(), {5, 6, 7});
  const auto b = make_request(branch, 4);
  EXPECT_TRUE(engine.admit(b).ok());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard12, a_match_needs_the_window_before_it) {
  expect_guarded(Fault::kWindowMatchUnchecked, branch_inside_a_cached_prompt);
}

TEST(Hazard12, the_whole_prompt_again_still_hits) {
  SchedulerConfig config = scenario_config(60);
  config.kv.groups.push_back({16, 40});
  SimEngine engine(config);
  const auto a = make_request(family_tokens(1, 100), 4);
  ASSERT_TRUE(engine.admit(a).ok());
  engine.run_until_idle(1);
  const auto again = copy_of(*a);
  ASSERT_TRUE(engine.admit(again).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(again->stream->cached_len, 96);
}

// Of a model with recurrent layers: a checkpoint every 32 tokens and behind a prompt's last whole block, 8 at most.
SchedulerConfig recurrent_config(int32_t num_checkpoints = 8) {
  SchedulerConfig config = scenario_config(60);
  config.kv.states = {.recurrent = true, .num_checkpoints = num_checkpoints, .checkpoint_interval = 32,
                      .checkpoint_min_tokens = 8};
  return config;
}

std::vector<TokenId> branch_at(int32_t shared) {
  std::vector<TokenId> tokens = family_tokens(1, shared);
  tokens.insert(tokens.end(), {5, 6, 7});
  return tokens;
}

// B leaves A's prompt where its KV is all there and no state is.
std::string branch_between_checkpoints() {
  SimEngine engine(recurrent_config());
  EXPECT_TRUE(engine.admit(make_request(family_tokens(1, 60), 4)).ok());
  engine.run_until_idle(1);
  const auto b = make_request(branch_at(48), 4);
  EXPECT_TRUE(engine.admit(b).ok());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  if (engine.violation().empty() && b->stream->cached_len != 32) return "the match does not end at the checkpoint";
  return engine.violation();
}
TEST(Hazard12, a_match_of_a_recurrent_model_ends_at_a_checkpoint) {
  expect_guarded(Fault::kCheckpointUnchecked, branch_between_checkpoints);
}

TEST(Hazard12, checkpoints_lie_at_multiples_at_a_prompts_end_and_where_prompts_part) {
  SimEngine engine(recurrent_config());
  const auto cached = [&](std::vector<TokenId> prompt) {
    const auto request = make_request(std::move(prompt), 2);
    EXPECT_TRUE(engine.admit(request).ok());
    engine.run_until_idle(1);
    return request->stream->cached_len.load();
  };
  EXPECT_EQ(cached(family_tokens(1, 60)), 0);
  EXPECT_EQ(cached(family_tokens(1, 60)), 56);  // the whole prompt again
  EXPECT_EQ(cached(branch_at(48)), 32);
  EXPECT_EQ(cached(branch_at(48)), 48);  // the second to part there made it a checkpoint
  EXPECT_EQ(cached(branch_at(31)), 0);
  EXPECT_EQ(cached(branch_at(33)), 32);
  EXPECT_EQ(engine.violation(), "");
}

TEST(Hazard12, what_a_long_answer_leaves_is_a_checkpoint_for_the_next_turn) {
  SimEngine engine(recurrent_config());
  const auto first = make_request(family_tokens(1, 20), 60);
  ASSERT_TRUE(engine.admit(first).ok());
  engine.run_until_idle(1);
  const auto second = make_request(next_turn(*first, predict_answer(*first, 60), {7, 8, 9}), 4);
  ASSERT_TRUE(engine.admit(second).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(second->stream->cached_len, 64);
}

// The device left the row out whose step was to save at 32: its 32nd token is a stop token.
TEST(Hazard12, a_checkpoint_that_was_not_written_is_not_kept) {
  SimEngine engine(recurrent_config());
  auto first = make_request(family_tokens(1, 22), 40);
  stop_at(*first, 9);
  ASSERT_TRUE(engine.admit(first).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.answer(*first).finish, FinishReason::kStop);
  const auto second = make_request(next_turn(*first, predict_answer(*first, 10), {7, 8, 9}), 4);
  ASSERT_TRUE(engine.admit(second).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(second->stream->cached_len, 16);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
}

TEST(Hazard12, checkpoints_are_evicted_by_an_order_of_their_own_and_never_while_blocks_would_do) {
  SimEngine engine(recurrent_config(3));
  const auto cached = [&](int32_t family) {
    const auto request = make_request(family_tokens(family, 20), 2);
    EXPECT_TRUE(engine.admit(request).ok());
    engine.run_until_idle(1);
    return request->stream->cached_len.load();
  };
  for (const int32_t family : {1, 2, 3}) EXPECT_EQ(cached(family), 0);
  EXPECT_EQ(cached(1), 16);  // used: now 2 is the oldest
  EXPECT_EQ(cached(4), 0);
  EXPECT_EQ(cached(1), 16);
  EXPECT_EQ(cached(3), 16);
  EXPECT_EQ(cached(2), 0) << "its blocks are there, its state is not";
  EXPECT_EQ(engine.violation(), "");
}

TEST(Hazard12, a_prompt_waits_for_anothers_prefix_only_where_that_leaves_a_checkpoint) {
  const auto rows_at_once = [](int32_t min_tokens) {
    SchedulerConfig config = recurrent_config();
    config.kv.states.checkpoint_interval = 2048;
    config.kv.states.checkpoint_min_tokens = min_tokens;
    config.chunk_size = config.max_step_tokens = 256;
    SimEngine engine(config);
    const auto a = make_request(family_tokens(1, 90), 2);
    EXPECT_TRUE(engine.admit(a).ok() && engine.admit(copy_of(*a)).ok());
    engine.turn(1);
    const size_t rows = engine.last_plan().rows.size();
    engine.run_until_idle(1);
    EXPECT_EQ(engine.violation(), "");
    return rows;
  };
  EXPECT_EQ(rows_at_once(8), 1u);
  EXPECT_EQ(rows_at_once(128), 2u);
}

TEST(Hazard12, a_long_prompt_keeps_its_first_checkpoints_and_its_last) {
  SchedulerConfig config = recurrent_config(4);
  SimEngine engine(config);
  const auto cached = [&](std::vector<TokenId> prompt) {
    const auto request = make_request(std::move(prompt), 2);
    EXPECT_TRUE(engine.admit(request).ok());
    engine.run_until_idle(1);
    return request->stream->cached_len.load();
  };
  EXPECT_EQ(cached(family_tokens(1, 200)), 0);
  EXPECT_EQ(engine.scheduler().stats().checkpoints.cached, 2);
  EXPECT_EQ(cached(branch_at(100)), 32);
  EXPECT_EQ(cached(family_tokens(1, 200)), 192);
  EXPECT_EQ(engine.violation(), "");
}

}  // namespace
}  // namespace tailrace
