// PFX-2: prefix reuse on a model with sliding-window layers is granted only where the window groups still hold what the next
// token sees, and leaves every answer as a cold run gives it.
#include <gtest/gtest.h>

#include "base/test_fault.h"
#include "ids/same_answer.h"
#include "support/checkpoint_writer.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

constexpr int kWindow = 32, kBlock = 16;
constexpr SameAnswerOptions kOptions{.tolerance = 1e-3, .max_forced_share = 0.03};

class Pfx2 : public ::testing::Test {
 protected:
  void SetUp() override {
    nlohmann::json config = tiny_gemma3_config();
    config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
    write_random_checkpoint(dir_.path(), config, 8, false);
  }
  EngineSetup setup() const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.block_size = kBlock;
    return setup;
  }
  std::vector<Answer> cold(const std::vector<Request>& requests) const {
    EngineSetup setup = this->setup();
    setup.limits.prefix_cache = false;
    TestEngine engine(setup);
    return run_alone(engine, requests);
  }
  TempDir dir_;
};

// Turns of a chat past the window: the prompt, the prompt again, extended by 1 and by W, branched at every multiple of 8.
std::vector<Request> turns_of(int length, int max_tokens) {
  const std::vector<TokenId> base = random_prompt(length, length);
  std::vector<Request> requests{greedy_request(base, max_tokens), greedy_request(base, max_tokens)};
  for (int more : {1, kWindow}) {
    std::vector<TokenId> ids = base;
    const std::vector<TokenId> tail = random_prompt(1000 + more, more);
    ids.insert(ids.end(), tail.begin(), tail.end());
    requests.push_back(greedy_request(ids, max_tokens));
  }
  for (int at = 8; at < length; at += 8) {
    std::vector<TokenId> ids(base.begin(), base.begin() + at);
    const std::vector<TokenId> tail = random_prompt(2000 + at, 10);
    ids.insert(ids.end(), tail.begin(), tail.end());
    requests.push_back(greedy_request(ids, max_tokens));
  }
  return requests;
}

std::vector<Request> all_turns() {
  std::vector<Request> all;
  for (int length : {kWindow - 1, kWindow, kWindow + 1, 2 * kWindow, 5 * kWindow + 3}) {
    const std::vector<Request> turns = turns_of(length, 12);
    all.insert(all.end(), turns.begin(), turns.end());
  }
  return all;
}

Variant one_by_one(TestEngine& engine) {
  return [&](const std::vector<Request>& requests) {
    std::vector<Answer> answers;
    for (const Request& request : requests) answers.push_back(engine.wait(*engine.submit(request)));
    return answers;
  };
}

TEST_F(Pfx2, warm_equals_cold) {
  const std::vector<Request> requests = all_turns();
  const std::vector<Answer> reference = cold(requests);
  TestEngine engine(setup());
  const Comparison result = same_answer(requests, reference, one_by_one(engine), kOptions);
  EXPECT_EQ(result.verdict(kOptions), "");
  EXPECT_LE(result.max_logprob_error, 1e-3);
  EXPECT_GT(engine.status().cached_tokens, 0u);
}

TEST_F(Pfx2, an_immediate_repeat_is_a_hit) {
  TestEngine engine(setup());
  for (int length : {kWindow + 1, 2 * kWindow, 5 * kWindow + 3}) {
    engine.flush_cache();
    const Request request = greedy_request(random_prompt(length, length), 4);
    EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, 0);
    EXPECT_EQ(engine.wait(*engine.submit(request)).cached_len, (length - 1) / kBlock * kBlock);
  }
}

TEST_F(Pfx2, after_generating_past_the_window) {
  const Request first = greedy_request(random_prompt(3, 40), 3 * kWindow);
  std::vector<Request> requests{first};
  requests.push_back(first);
  const std::vector<Answer> first_cold = cold({first});
  Request next = first;
  next.prompt_ids.insert(next.prompt_ids.end(), first_cold[0].ids.begin(), first_cold[0].ids.end());
  next.prompt_ids.push_back(17);
  next.max_tokens = 16;
  requests.push_back(next);
  const std::vector<Answer> reference = cold(requests);
  TestEngine engine(setup());
  EXPECT_EQ(same_answer(requests, reference, one_by_one(engine), kOptions).verdict(kOptions), "");
}

TEST_F(Pfx2, eight_streams_on_a_tiny_window_pool) {
  const std::vector<Request> requests = all_turns();
  const std::vector<Answer> reference = cold(requests);
  EngineSetup tight = setup();
  tight.limits.max_rows = 8;
  tight.limits.context_length = 256;
  tight.limits.max_total_tokens = 256;  // bounds both pools
  TestEngine engine(tight);
  const auto run = [&](const std::vector<Request>& some) { return engine.run(some); };
  EXPECT_EQ(same_answer(requests, reference, run, kOptions).verdict(kOptions), "");
}

TEST_F(Pfx2, a_match_on_full_blocks_alone_would_be_seen) {
  const std::vector<Request> requests = all_turns();
  const std::vector<Answer> reference = cold(requests);
  EngineSetup tight = setup();
  tight.limits.max_rows = 8;
  tight.limits.context_length = 256;
  tight.limits.max_total_tokens = 1024;
  ScopedTestFault fault(Fault::kWindowMatchUnchecked);
  TestEngine engine(tight);
  const auto run = [&](const std::vector<Request>& some) { return engine.run(some); };
  EXPECT_NE(same_answer(requests, reference, run, kOptions).verdict(kOptions), "");
}

}  // namespace
}  // namespace tailrace
