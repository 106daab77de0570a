// MEM-1: pages are conserved under load, counted whole, and the last request ends when it cannot
// grow.
#include <gtest/gtest.h>

#include "simulation/random.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

// 8 conversations extend their own history on a pool of 64 pages, one abort in ten; every answer is
// checked token by token.
TEST(Mem1, eight_conversations_on_64_pages) {
  SchedulerConfig config = scenario_config(64);
  config.max_rows = 8;
  config.chunk_size = 32;
  config.context_length = 384;
  SimEngine engine(config);
  Random random(1);
  struct Conversation {
    std::shared_ptr<Request> request;
    int32_t turns = 0;
  };
  std::vector<Conversation> conversations(8);
  for (int32_t requests = 0; requests < 4000 && engine.violation().empty();) {
    for (size_t i = 0; i < conversations.size(); ++i) {
      Conversation& talk = conversations[i];
      if (talk.request && !engine.answer(*talk.request).finished) {
        if (random.one_in(300)) talk.request->stream->cancel();
        continue;
      }
      std::vector<TokenId> prompt = family_tokens(static_cast<int32_t>(i), 12);
      const bool goes_on = talk.request && talk.request->prompt_ids.size() < 100;
      if (goes_on)
        prompt = next_turn(*talk.request, engine.answer(*talk.request).tokens,
                           family_tokens(50 + talk.turns, 5));
      talk.turns = goes_on ? talk.turns + 1 : 0;
      talk.request = make_request(prompt, random.between(1, 100));
      ASSERT_TRUE(engine.admit(talk.request).ok());
      ++requests;
    }
    engine.turn(1);
  }
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
  EXPECT_GT(engine.scheduler().stats().preemptions, 20u);
}

TEST(Mem1, with_one_free_page_of_128_the_second_short_prompt_waits) {
  SchedulerConfig config = scenario_config(1);
  config.kv.block_size = 128;
  SimEngine engine(config);
  const auto first = make_request(family_tokens(1, 2), 3),
             second = make_request(family_tokens(2, 2), 3);
  ASSERT_TRUE(engine.admit(first).ok() && engine.admit(second).ok());
  while (!engine.scheduler().idle() && engine.violation().empty()) {
    engine.turn(1);
    ASSERT_LE(engine.scheduler().stats().running, 1);
  }
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.answer(*second).tokens.size(), 3u);
  EXPECT_EQ(engine.scheduler().stats().preemptions, 0u);
}

TEST(Mem1, a_failing_engine_ends_every_request_once) {
  SimEngine engine(scenario_config(20));
  for (int i = 0; i < 6; ++i)
    ASSERT_TRUE(engine.admit(make_request(family_tokens(i, 20), 20)).ok());
  for (int i = 0; i < 4; ++i) engine.turn(1);
  engine.scheduler().fail_all(Status(StatusCode::kInternal, "the device is gone"));
  engine.turn(1);
  for (const auto& [id, answer] : engine.answers()) {
    EXPECT_TRUE(answer.finished);
    EXPECT_EQ(answer.finish, FinishReason::kError);
  }
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
}

}  // namespace
}  // namespace tailrace
