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
