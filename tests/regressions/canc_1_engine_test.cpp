// CANC-1: a request whose client left gives its row and blocks back within a step or two: while it decodes, in the middle of
// its prefill, while it waits, after its end; and again and again.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

class Canc1 : public ::testing::Test {
 protected:
  void SetUp() override { write_random_checkpoint(dir_.path(), tiny_llama_config(), 51); }
  EngineSetup setup() const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.context_length = 8192;
    setup.limits.max_total_tokens = 8192;
    setup.limits.chunk_size = 16;
    return setup;
  }
  static void expect_all_blocks_free(TestEngine& engine) {
    engine.flush_cache();
    EXPECT_EQ(engine.status().kv[0].free, engine.status().kv[0].total);
    EXPECT_EQ(engine.status().kv[0].owned, 0);
  }
  TempDir dir_;
};

TEST_F(Canc1, while_decoding) {
  TestEngine engine(setup());
  const auto request = engine.submit(greedy_request(random_prompt(1, 20), 4000, -1));
  engine.wait(*request, 3);
  engine.cancel(*request);
  const Answer& answer = engine.wait(*request);
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_LT(answer.ids.size(), 4000u);
  engine.wait_idle();
  const uint64_t computed = engine.status().computed_tokens;
  // The two steps that were in flight ran to their end; nothing ran for it after.
  EXPECT_LE(computed, 20 + answer.ids.size() + 2);
  engine.cancel(*request);  // idempotent: poll() refuses a second end
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engine.poll(*request);
  expect_all_blocks_free(engine);
}

TEST_F(Canc1, in_the_middle_of_prefill) {
  TestEngine engine(setup());
  const auto request = engine.submit(greedy_request(random_prompt(2, 8000), 10, -1));
  while (engine.status().computed_tokens == 0) std::this_thread::yield();
  engine.cancel(*request);
  const Answer& answer = engine.wait(*request);
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_TRUE(answer.ids.empty());
  engine.wait_idle();
  EXPECT_LT(engine.status().computed_tokens, 8000u);
  expect_all_blocks_free(engine);
}

TEST_F(Canc1, while_queued_behind_another) {
  EngineSetup one_row = setup();
  one_row.limits.max_rows = 1;
  TestEngine engine(one_row);
  const auto running = engine.submit(greedy_request(random_prompt(3, 10), 4000, -1));
  engine.wait(*running, 1);
  const auto queued = engine.submit(greedy_request(random_prompt(4, 10), 3000, -1));
  const auto next = engine.submit(greedy_request(random_prompt(5, 10), 5, -1));
  engine.cancel(*queued);
  EXPECT_EQ(engine.wait(*queued).finish, FinishReason::kCancelled);
  EXPECT_TRUE(engine.poll(*queued).ids.empty());
  engine.cancel(*running);
  engine.wait(*running);
  EXPECT_LT(queued->stream->times.finished_ns, running->stream->times.finished_ns);
  EXPECT_EQ(engine.wait(*next).ids.size(), 5u);
  EXPECT_LT(engine.status().generated_tokens, 4005u);
  expect_all_blocks_free(engine);
}

TEST_F(Canc1, before_the_engine_saw_it) {
  TestEngine engine(setup());
  Request request = greedy_request(random_prompt(6, 100), 500, -1);
  const auto submitted = engine.submit(request);
  engine.cancel(*submitted);
  EXPECT_EQ(engine.wait(*submitted).finish, FinishReason::kCancelled);
  expect_all_blocks_free(engine);
}

TEST_F(Canc1, two_hundred_rounds_leave_nothing_behind) {
  TestEngine engine(setup());
  const Request normal = greedy_request(random_prompt(7, 33), 20);
  const Answer before = engine.wait(*engine.submit(normal));
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::shared_ptr<const Request>> open;
    for (int i = 0; i < 3; ++i) {
      const int length = 1 + static_cast<int>(random() % (random() % 4 == 0 ? 600 : 60));
      open.push_back(engine.submit(greedy_request(random_prompt(random() % 8, length), 300, -1)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    for (const auto& request : open) engine.cancel(*request);
    for (const auto& request : open) engine.wait(*request);
  }
  engine.wait_idle();
  expect_all_blocks_free(engine);
  EXPECT_EQ(engine.wait(*engine.submit(normal)).ids, before.ids);
}

}  // namespace
}  // namespace tailrace
