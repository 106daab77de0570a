// Hazards 1, 5, 14, 15: what a launched step uses, what padded rows write, and what a middle chunk must not do.
#include "hazards/guarded.h"
#include "kv/block_allocator.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

// A's end is found while its next step is on the device; B waits for the one slot.
std::string slot_of_an_ended_row() {
  SchedulerConfig config = scenario_config(20);
  config.max_rows = 1;
  SimEngine engine(config);
  auto a = make_request(family_tokens(1, 20), 30);
  stop_at(*a, 4);
  const auto b = make_request(family_tokens(2, 20), 5);
  EXPECT_TRUE(engine.admit(a).ok() && engine.admit(b).ok());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard1, a_slot_is_reused_only_when_no_launched_step_uses_it) {
  expect_guarded(Fault::kReleaseInFlight, slot_of_an_ended_row);
}

// A's decode leaves blocks behind its window while B's chunks take a block each step: never one
// that A's launched step reads.
std::string window_blocks_of_a_launched_step() {
  SchedulerConfig config = scenario_config(40);
  config.kv.groups.push_back({8, 9});
  config.chunk_size = 8;
  SimEngine engine(config);
  const auto a = make_request(family_tokens(1, 8), 60);
  const auto b = make_request(family_tokens(2, 120), 2);
  EXPECT_TRUE(engine.admit(a).ok() && engine.admit(b).ok());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard1, window_blocks_are_reused_only_when_no_launched_step_reads_them) {
  expect_guarded(Fault::kReleaseInFlight, window_blocks_of_a_launched_step);
}

// A starts from the one checkpoint, and B, beside or right behind it, wants one to save to.
std::string checkpoint_of_a_launched_step() {
  SchedulerConfig config = scenario_config(40);
  config.kv.states = {.recurrent = true, .num_checkpoints = 1, .checkpoint_interval = 64, .checkpoint_min_tokens = 8};
  config.chunk_size = 32;
  SimEngine engine(config);
  const auto first = make_request(family_tokens(1, 18), 2);
  EXPECT_TRUE(engine.admit(first).ok());
  engine.run_until_idle(1);
  const auto a = copy_of(*first);
  const auto b = make_request(family_tokens(2, 12), 2);
  EXPECT_TRUE(engine.admit(a).ok() && engine.admit(b).ok());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  if (engine.violation().empty() && a->stream->cached_len != 16) return "A does not start from the checkpoint";
  return engine.violation();
}
TEST(Hazard1, a_checkpoint_is_overwritten_only_when_no_launched_step_starts_from_it) {
  expect_guarded(Fault::kCheckpointReusedEarly, checkpoint_of_a_launched_step);
}

std::string long_prompt_in_chunks() {
  SimEngine engine(scenario_config(40));
  EXPECT_TRUE(engine.admit(make_request(family_tokens(1, 50), 4)).ok());
  engine.run_until_idle(1);
  return engine.violation();
}
TEST(Hazard5, a_middle_chunk_is_not_sampled_from) {
  expect_guarded(Fault::kSampleMiddleChunk, long_prompt_in_chunks);
}

TEST(Hazard5, a_middle_chunk_is_not_in_the_cache) {
  SimEngine engine(scenario_config(40));
  const auto a = make_request(family_tokens(1, 50), 4);
  ASSERT_TRUE(engine.admit(a).ok());
  engine.turn(0);
  engine.turn(0);  // 32 of 50 tokens are computed
  const auto early = copy_of(*a);
  ASSERT_TRUE(engine.admit(early).ok());
  engine.turn(0);
  const auto late = copy_of(*a);
  engine.run_until_idle(0);
  ASSERT_TRUE(engine.admit(late).ok());
  engine.run_until_idle(0);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(early->stream->cached_len, 0);
  EXPECT_EQ(late->stream->cached_len, 48);
}

// Aborts while waiting, in a middle chunk, and in a decode step on the device.
std::string aborts_everywhere() {
  SchedulerConfig config = scenario_config(40);
  config.max_rows = 2;
  SimEngine engine(config);
  const auto decoding = make_request(family_tokens(1, 10), 100);
  const auto chunking = make_request(family_tokens(2, 100), 10);
  const auto waiting = make_request(family_tokens(3, 10), 10);
  EXPECT_TRUE(engine.admit(decoding).ok() && engine.admit(chunking).ok() &&
              engine.admit(waiting).ok());
  for (int i = 0; i < 3; ++i) engine.turn(1);
  for (const auto& request : {decoding, chunking, waiting}) request->stream->cancel();
  engine.turn(1);
  for (const auto& request : {decoding, chunking, waiting}) {
    if (!engine.answer(*request).finished) return "an abort took longer than a step";
  }
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard15, an_abort_gives_everything_back) {
  expect_guarded(Fault::kAbortLeaks, aborts_everywhere);
}

// In a prefill that has saved two checkpoints, one of them by a step in flight; and before the first step of one that
// matched.
std::string aborts_between_checkpoints() {
  SchedulerConfig config = scenario_config(40);
  config.kv.states = {.recurrent = true, .num_checkpoints = 6, .checkpoint_interval = 16, .checkpoint_min_tokens = 8};
  SimEngine engine(config);
  const auto chunking = make_request(family_tokens(2, 100), 10);
  EXPECT_TRUE(engine.admit(chunking).ok());
  engine.turn(1);
  engine.turn(1);
  if (engine.scheduler().stats().checkpoints.owned != 2) return "no two checkpoints were saved";
  chunking->stream->cancel();
  engine.run_until_idle(1);
  const auto done = make_request(family_tokens(3, 30), 2);
  EXPECT_TRUE(engine.admit(done).ok());
  engine.run_until_idle(1);
  const auto again = copy_of(*done);
  EXPECT_TRUE(engine.admit(again).ok());
  engine.turn(1);
  again->stream->cancel();
  engine.run_until_idle(1);
  engine.check_idle_pools();
  return engine.violation();
}
TEST(Hazard15, an_abort_gives_checkpoints_back) { expect_guarded(Fault::kAbortLeaks, aborts_between_checkpoints); }

// Padded rows of a captured graph read and write block 0: it must be nobody's.
std::string a_pool_handed_out_whole() {
  BlockAllocator pool(8);
  while (pool.num_free() > 0) {
    if (pool.allocate() == 0) return "a row owns the block that padded rows write";
  }
  return "";
}
TEST(Hazard14, padded_rows_never_touch_a_live_block) { expect_guarded(Fault::kPaddedRowLive, a_pool_handed_out_whole); }

}  // namespace
}  // namespace tailrace
