#include "ids/same_answer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tailrace {
namespace {

constexpr SameAnswerOptions kOptions{.tolerance = 0.1};

// An answer of `count` tokens that all led by 5.
Answer answer_of(int count) {
  Answer answer;
  for (int i = 0; i < count; ++i) {
    answer.ids.push_back(7);
    answer.logprobs.push_back(-0.5f);
    answer.top.push_back({{.id = 7, .logprob = -0.5f}, {.id = 9, .logprob = -5.5f}});
  }
  answer.finished = true;
  answer.finish = FinishReason::kLength;
  return answer;
}

// The verdict on an answer of 100 tokens whose logprobs are off by `error` at the first `count`.
std::string verdict(float error, int count) {
  Request request;
  request.prompt_ids = {1, 2};
  request.max_tokens = 100;
  const Answer reference = answer_of(100);
  Answer other = reference;
  for (int i = 0; i < count; ++i) other.logprobs[i] += error;
  const auto variant = [&](const std::vector<Request>&) { return std::vector<Answer>{other}; };
  return same_answer({request}, {reference}, variant, kOptions).verdict(kOptions);
}

TEST(SameAnswer, logprobs_within_twice_the_tolerance_are_the_same) { EXPECT_EQ(verdict(0.19f, 100), ""); }

TEST(SameAnswer, a_few_logprobs_may_be_further_off_but_not_more_than_the_forced_share) {
  EXPECT_EQ(verdict(0.5f, 3), "");
  EXPECT_EQ(verdict(0.5f, 4), "4 of 100 logprobs are off by more than 0.2");
}

TEST(SameAnswer, one_logprob_far_off_is_another_answer) {
  EXPECT_EQ(verdict(2.5f, 1), "request 0, token 0: a logprob of 2 instead of -0.5");
  EXPECT_NE(verdict(NAN, 1), "");
}

TEST(SameAnswer, tokens_beyond_the_margin_are_counted_only_where_a_share_is_given) {
  Request request;
  request.prompt_ids = {1, 2};
  request.max_tokens = 100;
  const Answer reference = answer_of(100);
  // The third and the fiftieth token of the answer differ, wherever it goes on from.
  const auto variant = [&](const std::vector<Request>& asked) {
    const size_t begin = asked[0].prompt_ids.size() - request.prompt_ids.size();
    Answer other = answer_of(static_cast<int>(100 - begin));
    for (const size_t at : {3, 50}) {
      if (at >= begin) other.ids[at - begin] = 9;
    }
    return std::vector<Answer>{other};
  };
  const auto verdict_at = [&](double share) {
    const SameAnswerOptions options{.tolerance = 0.1, .max_outside_share = share};
    return same_answer({request}, {reference}, variant, options).verdict(options);
  };
  EXPECT_EQ(verdict_at(0), "request 0, token 3: 9 instead of 7, which led by 5.0000");
  EXPECT_EQ(verdict_at(0.01), "2 of 100 tokens beyond the margin, first request 0, token 3: 9 instead of 7, which led by 5.0000");
  EXPECT_EQ(verdict_at(0.02), "");
}

TEST(SameAnswer, without_tolerance_any_difference_tells) {
  Request request;
  request.prompt_ids = {1};
  const Answer reference = answer_of(100);
  Answer other = reference;
  for (float& logprob : other.logprobs) logprob += 1e-3f;
  const SameAnswerOptions exact{.tolerance = 0};
  const auto variant = [&](const std::vector<Request>&) { return std::vector<Answer>{other}; };
  EXPECT_NE(same_answer({request}, {reference}, variant, exact).verdict(exact), "");
}

}  // namespace
}  // namespace tailrace
