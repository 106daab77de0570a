// CANC-1: whoever goes away leaves within one step, in every state, and its pages come back.
#include <gtest/gtest.h>

#include "simulation/random.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

SchedulerConfig one_slot() {
  SchedulerConfig config = scenario_config(64);
  config.max_rows = 1;
  config.context_length = 512;
  return config;
}

TEST(Canc1, a_second_request_starts_as_soon_as_the_decoding_one_is_cancelled) {
  SimEngine engine(one_slot());
  const auto first = make_request(family_tokens(1, 10), 400),
             second = make_request(family_tokens(2, 10), 5);
  ASSERT_TRUE(engine.admit(first).ok() && engine.admit(second).ok());
  for (int i = 0; i < 5; ++i) engine.turn(1);
  first->stream->cancel();
  first->stream->cancel();  // idempotent
  engine.turn(1);
  EXPECT_TRUE(engine.answer(*first).finished);
  engine.turn(1);  // the step in flight has ended
  engine.turn(1);
  EXPECT_FALSE(engine.last_plan().empty());
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
}

TEST(Canc1, a_prompt_cancelled_in_prefill_stops_within_a_chunk) {
  SimEngine engine(one_slot());
  const auto request = make_request(family_tokens(1, 400), 5);
  ASSERT_TRUE(engine.admit(request).ok());
  for (int i = 0; i < 3; ++i) engine.turn(1);
  request->stream->cancel();
  const uint64_t computed = engine.computed_tokens();
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.computed_tokens(), computed);
  EXPECT_EQ(engine.answer(*request).finish, FinishReason::kCancelled);
}

TEST(Canc1, a_queued_dead_request_never_runs) {
  SimEngine engine(one_slot());
  const auto a = make_request(family_tokens(1, 10), 20),
             b = make_request(family_tokens(2, 10), 400);
  const auto c = make_request(family_tokens(3, 10), 5);
  ASSERT_TRUE(engine.admit(a).ok() && engine.admit(b).ok() && engine.admit(c).ok());
  engine.turn(1);
  b->stream->cancel();
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_TRUE(engine.answer(*b).tokens.empty());
  EXPECT_EQ(engine.computed_tokens(), 10u + 19 + 10 + 4);  // A and C only
}

TEST(Canc1, of_several_choices_one_may_go) {
  SchedulerConfig config = one_slot();
  config.max_rows = 4;
  SimEngine engine(config);
  const auto first = make_request(family_tokens(1, 100), 20);
  std::vector<std::shared_ptr<Request>> choices{first, copy_of(*first), copy_of(*first)};
  for (const auto& choice : choices) ASSERT_TRUE(engine.admit(choice).ok());
  for (int i = 0; i < 12; ++i) engine.turn(1);
  choices[0]->stream->cancel();
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.answer(*choices[0]).finish, FinishReason::kCancelled);
  EXPECT_EQ(engine.answer(*choices[2]).tokens.size(), 20u);
  EXPECT_EQ(choices[1]->stream->cached_len, 96);  // the choices waited for the first one's prompt
}

TEST(Canc1, two_hundred_rounds_of_open_and_kill) {
  SchedulerConfig config = one_slot();
  config.max_rows = 3;
  SimEngine engine(config);
  Random random(9);
  for (int round = 0; round < 200; ++round) {
    const auto request =
        make_request(family_tokens(round, random.between(1, 200)), random.between(1, 100));
    ASSERT_TRUE(engine.admit(request).ok());
    for (int32_t i = random.between(0, 12); i > 0; --i) engine.turn(random.between(0, 1));
    request->stream->cancel();
  }
  engine.run_until_idle(1);
  const auto normal = make_request(family_tokens(1, 20), 10);
  ASSERT_TRUE(engine.admit(normal).ok());
  engine.run_until_idle(1);
  EXPECT_EQ(engine.answer(*normal).tokens, predict_answer(*normal, 10));
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
}

}  // namespace
}  // namespace tailrace
