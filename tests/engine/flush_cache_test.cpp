// Dropping cached prefixes on the real engine: who asks is told when it is done, and what was done.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kPatience(20'000);
constexpr int kBlock = 16;

class FlushCache : public ::testing::Test {
 protected:
  void SetUp() override { write_random_checkpoint(dir_.path(), tiny_llama_config(), 31); }
  EngineSetup setup() const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.block_size = kBlock;
    return setup;
  }

  TempDir dir_;
};

TEST_F(FlushCache, a_prompt_that_was_answered_before_is_not_found_after) {
  for (bool overlap : {true, false}) {
    EngineSetup options = setup();
    options.engine.overlap = overlap;
    TestEngine engine(options);
    const Request request = greedy_request(random_prompt(1, 10 * kBlock + 1), 3);
    EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 0);
    EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 10 * kBlock) << "cached unless it is flushed";
    for (int round = 0; round < 20; ++round) {
      const auto flushed = engine.host().flush_cache(kPatience);
      ASSERT_TRUE(flushed.has_value()) << flushed.error().message();
      EXPECT_EQ(flushed->blocks, 10);
      EXPECT_EQ(flushed->running, 0);
      EXPECT_EQ(engine.status().kv[0].cached, 0) << "published before the answer";
      EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 0);
    }
  }
}

// A stop token is found one step late: when its client is told, the row is in the step that was queued behind it.
TEST_F(FlushCache, a_row_that_has_just_ended_lets_go_of_its_prefix_first) {
  TestEngine engine(setup());
  const std::vector<TokenId> prompt = random_prompt(4, 10 * kBlock + 1);
  const TokenId first = engine.run({greedy_request(prompt, 1)})[0].ids[0];
  ASSERT_TRUE(engine.host().flush_cache(kPatience).has_value());
  Request request = greedy_request(prompt, 50);
  request.stop_token_ids = {first};
  std::future<Expected<FlushedCache>> flushed;
  const auto on_first = [&] {  // on the engine's thread: the flush is asked for before this turn of the loop ends
    flushed = std::async(std::launch::async, [&] { return engine.host().flush_cache(kPatience); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  engine.wait(*engine.submit(request, on_first));
  const auto result = flushed.get();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->blocks, 10);
}

TEST_F(FlushCache, while_a_request_runs_its_own_prefix_stays_and_its_answer_is_the_same) {
  const Request request = greedy_request(random_prompt(2, 4 * kBlock + 1), 600);
  const Answer alone = TestEngine(setup()).run({request})[0];
  TestEngine engine(setup());
  engine.run({greedy_request(random_prompt(3, 6 * kBlock + 1), 2)});
  const auto running = engine.submit(request);
  engine.wait(*running, 1);
  const auto flushed = engine.host().flush_cache(kPatience);
  ASSERT_TRUE(flushed.has_value());
  EXPECT_EQ(flushed->blocks, 6);
  EXPECT_EQ(flushed->running, 1);
  EXPECT_FALSE(engine.poll(*running).finished);
  EXPECT_EQ(engine.wait(*engine.submit(greedy_request(request.prompt_ids, 1))).cached_len, 4 * kBlock);
  EXPECT_EQ(engine.wait(*running).ids, alone.ids);
}

TEST_F(FlushCache, an_engine_that_has_ended_says_so) {
  TestEngine engine(setup());
  engine.stop(true);
  const auto flushed = engine.host().flush_cache(kPatience);
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tailrace
