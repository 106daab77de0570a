// UTF8-1: text repeated, lost or replaced when a code point crosses tokens.
#include <gtest/gtest.h>

#include <random>

#include "support/text_fixture.h"
#include "text/detokenizer.h"

namespace tailrace {
namespace {

TEST(Utf8_1, holds_back_exactly_the_incomplete_tail) {
  Utf8Stream stream;
  std::string out;
  stream.push("\xE4\xB8\x96\xC3", &out);
  EXPECT_EQ(out, "世");
  EXPECT_EQ(stream.held_bytes(), 1u);
  stream.push("\xA9\xF0", &out);
  EXPECT_EQ(out, "世é");
  EXPECT_EQ(stream.held_bytes(), 1u);
  stream.push("\x9F\x98\x80" "b", &out);
  EXPECT_EQ(out, "世é😀b");
  EXPECT_EQ(stream.held_bytes(), 0u);
}

TEST(Utf8_1, hopeless_bytes_are_replaced_at_once_by_maximal_subparts) {
  const struct {
    const char* bytes;
    int replacements;
    size_t held;
  } rows[] = {{"\x80", 1, 0},         {"\xC0\xAF", 2, 0},         {"\xE0\x80\x80", 3, 0}, {"\xED\xA0\x80", 3, 0},
              {"\xF4\x90\x80\x80", 4, 0}, {"\xF0\x80", 2, 0},     {"\xF1\x80\x80", 0, 3}, {"\xFF", 1, 0},
              {"\xE1\x80\xE2", 1, 1}, {"\xF0\x9F\x98\xC3", 1, 1}};
  for (const auto& row : rows) {
    Utf8Stream stream;
    std::string out;
    stream.push(row.bytes, &out);
    EXPECT_EQ(out.size(), static_cast<size_t>(row.replacements) * 3) << row.bytes;
    EXPECT_EQ(stream.held_bytes(), row.held) << row.bytes;
    std::string rest;
    stream.finish(&rest);
    EXPECT_EQ(rest, row.held > 0 ? "\xEF\xBF\xBD" : "");
  }
}

TEST(Utf8_1, token_bytes_are_raw) {
  const auto tokenizer = fixture_tokenizer("bytelevel.json");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->token_bytes(261), "\xF0\x9F");
  EXPECT_EQ(tokenizer->token_bytes(152), "\x98");
  const auto spm = fixture_tokenizer("spm_prepend.json");
  ASSERT_NE(spm, nullptr);
  EXPECT_EQ(spm->token_bytes(3 + 0xF0), "\xF0");
  EXPECT_EQ(spm->token_bytes(265), " hi");
  EXPECT_EQ(spm->token_bytes(-1), "");
  EXPECT_EQ(spm->token_bytes(1 << 30), "");
}

// Whatever the ids: the deltas joined are one full decode, nothing is held for longer than an incomplete tail, and cutting
// the bytes anywhere gives the same text.
TEST(Utf8_1, deltas_join_to_the_full_decode_of_random_ids) {
  for (const char* name : {"bytelevel.json", "spm_prepend.json", "spm_meta_always.json", "spm_meta_first.json",
                           "spm_meta_never.json"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = fixture_tokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    std::mt19937 random(7);
    std::uniform_int_distribution<TokenId> any(-1, tokenizer->vocab_size());
    for (int round = 0; round < 400; ++round) {
      const bool skip = round % 2 == 0;
      std::vector<TokenId> ids(1 + random() % 40);
      for (TokenId& id : ids) id = any(random);
      Detokenizer detokenizer(tokenizer, skip);
      std::string joined;
      for (const TokenId id : ids) {
        joined += detokenizer.push(id);
        ASSERT_LE(detokenizer.held_bytes(), 3u);
      }
      joined += detokenizer.flush();
      ASSERT_EQ(joined, tokenizer->decode(ids, skip));
    }
  }
}

TEST(Utf8_1, valid_text_comes_back_whole) {
  const std::string text = "A 世é😀b, naïve 👩‍👩‍👧 \xEF\xBF\xBD end";
  for (const char* name : {"bytelevel.json", "spm_meta_always.json", "spm_meta_never.json"}) {
    const auto tokenizer = fixture_tokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    const auto ids = tokenizer->encode(text, false, false);
    ASSERT_TRUE(ids.has_value());
    if (std::string(name) == "bytelevel.json") {
      EXPECT_EQ(tokenizer->decode(*ids, false), text);
    }
    Detokenizer detokenizer(tokenizer, false);
    std::string joined;
    for (const TokenId id : *ids) joined += detokenizer.push(id);
    EXPECT_EQ(joined + detokenizer.flush(), tokenizer->decode(*ids, false));
  }
}

}  // namespace
}  // namespace tailrace
