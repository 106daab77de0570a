// A row whose stop id was sampled while its next step was queued already: the device leaves it out of that step.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_fault.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

constexpr int kRows = 6;

class StoppedRow : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { write_random_checkpoint(dir_.path(), tiny_llama_config(), 11); }
  EngineSetup setup(bool overlap = true) const {
    EngineSetup setup = test_setup(dir_.path(), GetParam());
    setup.engine.overlap = overlap;
    return setup;
  }
  // Requests of different lengths, answered without stop ids.
  static std::vector<Request> requests() {
    std::vector<Request> out;
    for (int i = 0; i < kRows; ++i) out.push_back(greedy_request(random_prompt(70 + i, 20 + 9 * i), 24));
    return out;
  }
  // Half of them are ended by a token of theirs.
  static void stop_some(std::vector<Request>& requests, std::vector<Answer>& expected) {
    for (int i = 0; i < kRows; i += 2) {
      std::vector<TokenId>& ids = expected[i].ids;
      requests[i].stop_token_ids = {ids[5 + i]};
      ids.erase(std::find(ids.begin(), ids.end(), ids[5 + i]) + 1, ids.end());
      expected[i].finish = FinishReason::kStop;
    }
  }
  static void expect_answers(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
    for (int i = 0; i < kRows; ++i) {
      EXPECT_EQ(got[i].ids, expected[i].ids) << i;
      EXPECT_EQ(got[i].finish, expected[i].finish) << i;
      for (size_t t = 0; t < got[i].ids.size(); ++t) EXPECT_EQ(got[i].logprobs[t], expected[i].logprobs[t]) << i;
    }
  }
  // Once the results of all steps are in.
  static uint64_t spared(TestEngine& engine) {
    engine.wait_idle();
    return engine.status().spared_rows;
  }
  TempDir dir_;
};

TEST_P(StoppedRow, is_left_out_of_the_step_that_was_queued_and_changes_no_other_answer) {
  std::vector<Request> asked = requests();
  std::vector<Answer> expected = TestEngine(setup()).run(asked);
  stop_some(asked, expected);
  TestEngine engine(setup());
  expect_answers(engine.run(asked), expected);
  EXPECT_EQ(spared(engine), kRows / 2u);
  {
    const ScopedTestFault taken_out(Fault::kIgnoreStopFlags);
    TestEngine runs_on(setup());
    expect_answers(runs_on.run(asked), expected);
    EXPECT_EQ(spared(runs_on), 0u);
  }
  TestEngine in_turn(setup(false));  // the host knows before the next step is planned
  expect_answers(in_turn.run(asked), expected);
  EXPECT_EQ(spared(in_turn), 0u);
}

TEST_P(StoppedRow, min_tokens_and_a_slot_that_is_used_again) {
  EngineSetup one_row = setup();
  one_row.limits.max_rows = 1;
  TestEngine engine(one_row);
  const Request plain = greedy_request(random_prompt(5, 30), 12);
  const Answer whole = engine.run({plain})[0];
  Request stopped = plain;
  stopped.stop_token_ids = {whole.ids[3]};
  const Answer first = engine.run({stopped})[0];
  EXPECT_EQ(first.finish, FinishReason::kStop);
  EXPECT_EQ(spared(engine), 1u);
  EXPECT_EQ(engine.run({plain})[0].ids, whole.ids);  // the flag went with its row
  stopped.min_tokens = 12;  // no stop id may be chosen, and the answer ends by its length
  const Answer long_one = engine.run({stopped})[0];
  EXPECT_EQ(long_one.ids.size(), 12u);
  EXPECT_EQ(long_one.finish, FinishReason::kLength);
  EXPECT_EQ(spared(engine), 1u);
}

// The next turn of a conversation: what it finds cached ends before the stop token, whose KV was never written.
TEST_P(StoppedRow, its_last_token_is_not_in_the_prefix_cache) {
  TestEngine engine(setup());
  Request request;
  Answer whole;
  bool first_time = false;  // its sixth token has not occurred before
  for (int seed = 1; !first_time; ++seed) {
    ASSERT_LT(seed, 100);
    request = greedy_request(random_prompt(seed, 26), 24);
    whole = engine.run({request})[0];
    first_time = std::find(whole.ids.begin(), whole.ids.begin() + 5, whole.ids[5]) == whole.ids.begin() + 5;
  }
  engine.wait_idle();
  engine.flush_cache();
  request.stop_token_ids = {whole.ids[5]};
  const Answer stopped = engine.run({request})[0];  // 26 + 6 tokens: two blocks of 16
  ASSERT_EQ(stopped.ids.size(), 6u);
  engine.wait_idle();
  std::vector<TokenId> next = request.prompt_ids;
  next.insert(next.end(), stopped.ids.begin(), stopped.ids.end());
  for (int i = 0; i < 7; ++i) next.push_back(3 + i);
  const auto submitted = engine.submit(greedy_request(next, 8));
  const std::vector<TokenId> cached = engine.wait(*submitted).ids;
  EXPECT_EQ(submitted->stream->cached_len, 16);
  engine.wait_idle();
  engine.flush_cache();
  EXPECT_EQ(engine.run({greedy_request(next, 8)})[0].ids, cached);
}

INSTANTIATE_TEST_SUITE_P(Backends, StoppedRow, ::testing::Values("cpu", "reference"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tailrace
