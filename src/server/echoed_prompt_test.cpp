#include "server/echoed_prompt.h"

#include <gtest/gtest.h>

#include "support/small_tokenizers.h"

namespace tailrace {
namespace {

TEST(EchoedPrompt, tokens_begin_where_their_text_does) {
  const auto words = Tokenizer::from_gguf(small_sentence_piece()).value();
  const auto offsets = [&](const std::string& text) {
    auto ids = words->encode(text, /*add_special_tokens=*/false, /*parse_special=*/true).value();
    ids.insert(ids.begin(), 1);  // <s>, which is not in the text
    return token_offsets(*words, text, ids);
  };
  EXPECT_EQ(offsets("hi hi"), (std::vector<int64_t>{0, 0, 2}));
  EXPECT_EQ(offsets("\u4e16h"), (std::vector<int64_t>{0, 0, 0, 1}));  // the space in front is a token of its own
  const auto bytes = Tokenizer::from_gguf(small_byte_level()).value();
  EXPECT_EQ(token_offsets(*bytes, "\u00e9<|im_end|>a", {0xC3, 0xA9, 257, 'a'}), (std::vector<int64_t>{0, 1, 1, 11}));
  EXPECT_EQ(token_offsets(*bytes, "a", {'b', 'c', 'd'}), (std::vector<int64_t>{0, 1, 1}));  // never behind its end
}

TEST(EchoedPrompt, a_scorer_lets_nothing_come_but_the_prompt) {
  const auto scorer = prompt_scorer({40, 7, 33}, 2, "salt");
  EXPECT_EQ(scorer->prompt_ids, (std::vector<TokenId>{40}));
  EXPECT_EQ(scorer->max_tokens, 2);
  EXPECT_EQ(scorer->sampling.num_top_logprobs, 2);
  EXPECT_EQ(scorer->cache_salt, "salt");
  EXPECT_TRUE(scorer->stop_token_ids.empty());
  const auto run = scorer->constraint->start().value();
  std::vector<uint32_t> mask(2, ~0u);
  ASSERT_TRUE(run->next({}, mask).ok());
  EXPECT_EQ(mask, (std::vector<uint32_t>{1u << 7, 0}));
  const std::vector<int32_t> taken = {7, 33};
  ASSERT_TRUE(run->next(std::span(taken).first(1), mask).ok());
  EXPECT_EQ(mask, (std::vector<uint32_t>{0, 1u << 1}));
  ASSERT_TRUE(run->next(std::span(taken).last(1), mask).ok());
  EXPECT_NE(mask, (std::vector<uint32_t>{0, 0}));
  EXPECT_EQ(prompt_scorer({40}, 2, ""), nullptr);
}

}  // namespace
}  // namespace tailrace
