// OVL-1: with steps in flight, nothing that they use is given to others, and nothing after the end
// is told.
#include <gtest/gtest.h>

#include "simulation/random.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

struct Replies {
  std::string violation;
  std::vector<std::vector<TokenId>> tokens;
  uint64_t preemptions = 0;
};

// 5000 requests of 1..40 tokens at 16 streams; some end by a stop token, some are aborted, and the
// pool makes rows give way.
Replies serve(size_t max_inflight, bool aborts) {
  SchedulerConfig config = scenario_config(60);
  config.max_rows = 16;
  config.chunk_size = 32;
  SimEngine engine(config);
  Random random(7);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 5000; ++i) {
    auto request =
        make_request(family_tokens(i % 200, random.between(1, 30)), random.between(1, 40));
    if (random.one_in(2)) request->stop_token_ids = {3, 17, 40, 77};
    if (random.one_in(20)) request->stop_token_ids = predict_answer(*request, 1);
    requests.push_back(std::move(request));
  }
  size_t next = 0;
  while ((next < requests.size() || !engine.scheduler().idle()) && engine.violation().empty()) {
    while (next < requests.size() && engine.scheduler().stats().waiting < 16) {
      EXPECT_TRUE(engine.admit(requests[next++]).ok());
    }
    if (aborts && random.one_in(10))
      requests[random.between(0, static_cast<int32_t>(next) - 1)]->stream->cancel();
    engine.turn(max_inflight);
  }
  engine.check_idle_pools();
  Replies replies{engine.violation(), {}, engine.scheduler().stats().preemptions};
  for (const auto& request : requests) replies.tokens.push_back(engine.answer(*request).tokens);
  return replies;
}

TEST(Ovl1, replies_with_overlap_equal_those_without) {
  const Replies without = serve(0, false), with = serve(1, false);
  EXPECT_EQ(without.violation, "");
  EXPECT_EQ(with.violation, "");
  EXPECT_GT(with.preemptions, 50u);
  EXPECT_EQ(without.tokens, with.tokens);
}

TEST(Ovl1, replies_beside_random_aborts_are_exact) {  // the engine's oracle checks each token of
                                                      // each reply
  EXPECT_EQ(serve(1, true).violation, "");
  EXPECT_EQ(serve(2, true).violation, "");
}

TEST(Ovl1, nothing_follows_an_abort_and_a_preempted_row_neither_loses_nor_doubles_a_token) {
  SchedulerConfig config = scenario_config(12);
  config.kv.prefix_cache = false;
  SimEngine engine(config);
  const auto a = make_request(family_tokens(1, 20), 60), b = make_request(family_tokens(2, 20), 60);
  ASSERT_TRUE(engine.admit(a).ok() && engine.admit(b).ok());
  while (b->stream->num_preemptions == 0 && engine.violation().empty() &&
         !engine.scheduler().idle())
    engine.turn(1);
  ASSERT_EQ(b->stream->num_preemptions, 1);
  engine.run_until_idle(1);
  EXPECT_EQ(engine.violation(), "");
  EXPECT_EQ(engine.answer(*a).tokens, predict_answer(*a, 60));
  EXPECT_EQ(engine.answer(*b).tokens, predict_answer(*b, 60));
}

}  // namespace
}  // namespace tailrace
