// SMP-1 and SMP-2 end to end: what is drawn depends on the request's own seed, choice and tokens, not on its neighbours; bans
// and penalties hold from the first token on.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ids/same_answer.h"
#include "support/checkpoint_writer.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

class SamplingOnEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    write_random_checkpoint(dir_.path(), tiny_llama_config(), 81);
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.max_rows = 32;
    setup.limits.prefix_cache = false;
    engine_ = std::make_unique<TestEngine>(setup);
  }
  static Request drawn(uint64_t seed, uint32_t choice = 0, float temperature = 1.0f, int32_t max_tokens = 40) {
    Request request = greedy_request(random_prompt(5, 12), max_tokens, -1);
    request.sampling.temperature = temperature;
    request.sampling.seed = seed;
    request.sampling.choice_index = choice;
    return request;
  }
  Answer alone(const Request& request) { return engine_->wait(*engine_->submit(request)); }

  TempDir dir_;
  std::unique_ptr<TestEngine> engine_;
};

TEST_F(SamplingOnEngine, greedy_rows_beside_sampled_ones) {
  std::vector<Request> greedy;
  for (int i = 0; i < 20; ++i) greedy.push_back(greedy_request(random_prompt(300 + i, 10 + i), 30));
  const std::vector<Answer> reference = run_alone(*engine_, greedy);
  const Variant beside = [&](std::vector<Request> requests) {
    for (int i = 0; i < 12; ++i) requests.push_back(drawn(900 + i, 0, 1.5f));
    std::vector<Answer> answers = engine_->run(requests);
    answers.resize(answers.size() - 12);
    return answers;
  };
  const SameAnswerOptions options{.tolerance = 0.005};
  EXPECT_EQ(same_answer(greedy, reference, beside, options).verdict(options), "");
}

TEST_F(SamplingOnEngine, one_seed_gives_one_text_alone_and_among_others) {
  const Answer first = alone(drawn(42));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(alone(drawn(42)).ids, first.ids);
  std::vector<Request> crowd(1, drawn(42));
  for (int i = 0; i < 12; ++i) crowd.push_back(drawn(7000 + i));
  const Variant among = [&](const std::vector<Request>& requests) {
    crowd[0] = requests[0];
    std::vector<Answer> answers = engine_->run(crowd);
    answers.resize(1);
    return answers;
  };
  const SameAnswerOptions options{.max_forced_share = 0.05, .sampled = true};
  EXPECT_EQ(same_answer({drawn(42)}, {first}, among, options).verdict(options), "");
}

TEST_F(SamplingOnEngine, choices_of_one_seed_differ_and_repeat) {
  std::map<std::vector<TokenId>, int> texts;
  for (int round = 0; round < 2; ++round) {
    for (uint32_t choice = 0; choice < 3; ++choice) texts[alone(drawn(42, choice)).ids]++;
  }
  EXPECT_EQ(texts.size(), 3u);
  for (const auto& [ids, count] : texts) EXPECT_EQ(count, 2);
}

TEST_F(SamplingOnEngine, a_banned_token_never_appears) {
  const TokenId favourite = alone(greedy_request(random_prompt(5, 12), 1)).ids[0];
  for (float temperature : {0.0f, 1.0f}) {
    Request request = drawn(3, 0, temperature, 200);
    request.sampling.logit_bias = {{favourite, -100.0f}};
    const Answer answer = alone(request);
    EXPECT_EQ(std::count(answer.ids.begin(), answer.ids.end(), favourite), 0);
  }
  Request lifted = greedy_request(random_prompt(5, 12), 20);
  lifted.sampling.logit_bias = {{77, 100.0f}};
  EXPECT_EQ(alone(lifted).ids, std::vector<TokenId>(20, 77));
}

TEST_F(SamplingOnEngine, frequency_penalty_spreads_the_tokens) {
  const auto most_frequent = [](const Answer& answer) {
    std::map<TokenId, int> counts;
    int most = 0;
    for (TokenId id : answer.ids) most = std::max(most, ++counts[id]);
    return most;
  };
  Request request = greedy_request(random_prompt(6, 12), 200);
  const int without = most_frequent(alone(request));
  request.sampling.frequency_penalty = 2.0f;
  EXPECT_LE(most_frequent(alone(request)), without);
  request.sampling.frequency_penalty = 0;
  request.sampling.logit_bias = {{77, 6.0f}};  // so that it would be chosen often
  const int lifted = most_frequent(alone(request));
  request.sampling.presence_penalty = 2.0f;
  request.sampling.frequency_penalty = 2.0f;
  EXPECT_LT(most_frequent(alone(request)), lifted);
}

}  // namespace
}  // namespace tailrace
