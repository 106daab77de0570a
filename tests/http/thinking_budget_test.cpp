// A bound on reasoning, token by token: what may come next once it is used up.
#include "server/thinking_budget.h"

#include <gtest/gtest.h>

#include "http/scripted_text.h"

namespace tailrace::test {
namespace {

struct Budget : testing::Test {
  ServedModel model(ReasoningFormat reasoning) {
    ServedModel out;
    out.text = scripted.text;
    out.vocab_size = scripted.vocab_size;
    out.output.reasoning = reasoning;
    return out;
  }
  TokenId id(const std::string& token) const {
    return *scripted.text->tokenizer->token_to_id(token);
  }
  // The tokens that may follow `tokens`; "any" for all of them, "all but X".
  std::string next(ConstraintRun& run, const std::vector<TokenId>& tokens) const {
    std::vector<uint32_t> mask(mask_words(scripted.vocab_size));
    EXPECT_TRUE(run.next(tokens, mask).ok());
    std::string allowed, barred;
    for (TokenId token = 0; token < scripted.vocab_size; ++token) {
      const bool may = (mask[token / 32] >> (token % 32) & 1) != 0;
      (may ? allowed : barred) += scripted.text->tokenizer->token_bytes(token);
    }
    return barred.empty() ? "any" : barred.size() < allowed.size() ? "all but " + barred : allowed;
  }
  const ScriptedText scripted = make_scripted_text(
      {{"s", {"<think>", "hm", "</think>"}},
       {"h",
        {"<|channel|>", "analysis", "<|message|>", "why", "<|end|>", "<|start|>", "assistant"}}});
};

TEST_F(Budget, when_it_is_used_up_the_marker_comes_and_then_anything) {
  const auto bounded =
      bound_thinking(model(ReasoningFormat::kQwen3), ThinkStart::kInside, 3, nullptr);
  ASSERT_TRUE(bounded.has_value());
  auto run = (*bounded)->start().value();
  EXPECT_EQ(next(*run, {}), "any");
  EXPECT_EQ(next(*run, {id("hm"), id("hm")}), "any");
  EXPECT_EQ(next(*run, {id("hm")}), "</think>");
  EXPECT_EQ(next(*run, {id("</think>")}), "any");
  EXPECT_EQ(next(*run, {id("hm"), id("hm"), id("hm"), id("hm")}), "any");
}

TEST_F(Budget, reasoning_that_ends_in_time_is_left_alone) {
  const auto bounded =
      bound_thinking(model(ReasoningFormat::kQwen3), ThinkStart::kInside, 3, nullptr);
  auto run = (*bounded)->start().value();
  EXPECT_EQ(next(*run, {id("hm"), id("</think>"), id("hm"), id("hm"), id("hm"), id("hm")}), "any");
}

TEST_F(Budget, of_gpt_oss_ends_the_message_and_opens_another_channel) {
  const auto bounded =
      bound_thinking(model(ReasoningFormat::kHarmony), ThinkStart::kOutside, 2, nullptr);
  ASSERT_TRUE(bounded.has_value());
  auto run = (*bounded)->start().value();
  EXPECT_EQ(next(*run, {id("<|channel|>"), id("analysis"), id("<|message|>")}), "any");
  EXPECT_EQ(next(*run, {id("why"), id("why")}), "<|end|>");
  EXPECT_EQ(next(*run, {id("<|end|>")}), "<|start|>");
  EXPECT_EQ(next(*run, {id("<|start|>")}),
            "a");  // this vocabulary has no merges: "assistant" is nine tokens
  std::vector<TokenId> letters;
  for (const char letter : std::string("assistant"))
    letters.push_back(static_cast<unsigned char>(letter));
  EXPECT_EQ(next(*run, letters), "<|channel|>");
  EXPECT_EQ(next(*run, {id("<|channel|>")}), "all but analysis");
}

TEST_F(Budget, needs_reasoning_that_ends) {
  EXPECT_FALSE(
      bound_thinking(model(ReasoningFormat::kNone), ThinkStart::kOutside, 3, nullptr).has_value());
}

}  // namespace
}  // namespace tailrace::test
