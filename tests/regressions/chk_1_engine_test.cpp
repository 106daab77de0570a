// CHK-1: mixing prefill and decode changes nobody's answer, whatever the chunk size and the number of streams; sampling
// inputs belong to their request, and a chunk that is not the last samples nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "ids/same_answer.h"
#include "support/checkpoint_writer.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

class Chk1 : public ::testing::Test {
 protected:
  void SetUp() override {
    write_random_checkpoint(dir_.path(), tiny_qwen3_config(), 31);
    TestEngine engine(setup(4096));
    reference_ = run_alone(engine, requests_);
  }
  EngineSetup setup(int32_t chunk) const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.context_length = 3200;
    setup.limits.max_total_tokens = 16 * 1024;
    setup.limits.chunk_size = chunk;
    return setup;
  }
  TempDir dir_;
  std::vector<Request> requests_ = varied_requests(32);
  std::vector<Answer> reference_;
};

TEST_F(Chk1, a_prompt_of_3000_tokens_arrives_while_others_decode) {
  for (int32_t chunk : {7, 64, 4096}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    TestEngine engine(setup(chunk));
    const Variant mixed = [&](const std::vector<Request>& requests) { return run_mixed(engine, requests, 3000); };
    const SameAnswerOptions options{.tolerance = 0.005};
    EXPECT_EQ(same_answer(requests_, reference_, mixed, options).verdict(options), "");
    EXPECT_GT(engine.status().mixed_steps, 0u);
  }
}

TEST_F(Chk1, any_number_of_streams) {
  for (int32_t chunk : {1, 16, 64}) {
    TestEngine engine(setup(chunk));
    for (size_t streams : {1, 2, 5, 16}) {
      SCOPED_TRACE("chunk " + std::to_string(chunk) + ", streams " + std::to_string(streams));
      const std::vector<Request> some(requests_.begin(), requests_.begin() + streams);
      const std::vector<Answer> expected(reference_.begin(), reference_.begin() + streams);
      const Variant mixed = [&](const std::vector<Request>& requests) { return run_mixed(engine, requests, 70); };
      const SameAnswerOptions options{.tolerance = 0.005};
      EXPECT_EQ(same_answer(some, expected, mixed, options).verdict(options), "");
    }
  }
}

TEST_F(Chk1, logprobs_are_as_many_as_tokens_and_as_asked) {
  TestEngine engine(setup(16));
  for (size_t i = 0; i < requests_.size(); i += 5) requests_[i].sampling.num_top_logprobs = -1;
  for (size_t i = 1; i < requests_.size(); i += 5) requests_[i].sampling.num_top_logprobs = 0;
  const std::vector<Answer> answers = run_mixed(engine, requests_, 300);
  for (size_t i = 0; i < answers.size(); ++i) {
    const int wanted = requests_[i].sampling.num_top_logprobs;
    ASSERT_EQ(answers[i].top.size(), answers[i].ids.size());
    for (size_t t = 0; t < answers[i].top.size(); ++t) {
      EXPECT_EQ(answers[i].top[t].size(), static_cast<size_t>(std::max(0, wanted)));
      if (wanted >= 0) {
        EXPECT_LT(answers[i].logprobs[t], 0);
      }
      if (wanted > 0) {
        EXPECT_GE(answers[i].top[t][0].logprob, answers[i].logprobs[t]);
      }
    }
  }
}

TEST_F(Chk1, bans_penalties_and_stops_hold_in_mixed_steps) {
  TestEngine engine(setup(16));
  const std::vector<Answer> answers = run_mixed(engine, requests_, 300);
  for (size_t i = 0; i < answers.size(); ++i) {
    for (size_t t = 0; t < answers[i].ids.size(); ++t) {
      const TokenId id = answers[i].ids[t];
      for (const auto& [banned, bias] : requests_[i].sampling.logit_bias) EXPECT_NE(id, banned);
      const auto& stops = requests_[i].stop_token_ids;
      const bool stop = std::find(stops.begin(), stops.end(), id) != stops.end();
      if (!stop) continue;
      EXPECT_GE(t, static_cast<size_t>(requests_[i].min_tokens));
      EXPECT_EQ(t + 1, answers[i].ids.size());
    }
  }
}

}  // namespace
}  // namespace tailrace
