#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/small_tokenizers.h"
#include "text/tokenizer.h"

namespace tailrace {
namespace {

constexpr int kNormal = 1, kControl = 3, kUserDefined = 4;

// The rule in its plainest form: merge the adjacent pair of the highest score, leftmost first, until none is a piece.
std::vector<TokenId> plain_merge(const GgufTokenizer& spec, std::string text) {
  std::map<std::string, TokenId> ids;
  for (size_t i = 0; i < spec.tokens.size(); ++i) ids.emplace(spec.tokens[i], static_cast<TokenId>(i));
  std::vector<std::string> symbols;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    symbols.push_back(text.substr(at, length));
    at += length;
  }
  for (;;) {
    int best = -1;
    float score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ids.find(symbols[i] + symbols[i + 1]);
      if (it == ids.end()) continue;
      const float own = spec.scores[static_cast<size_t>(it->second)];
      if (best < 0 || own > score) best = static_cast<int>(i), score = own;
    }
    if (best < 0) break;
    symbols[static_cast<size_t>(best)] += symbols[static_cast<size_t>(best) + 1];
    symbols.erase(symbols.begin() + best + 1);
  }
  std::vector<TokenId> result;
  for (const std::string& symbol : symbols) {
    if (const auto it = ids.find(symbol); it != ids.end()) {
      result.push_back(it->second);
    } else {
      for (const char byte : symbol) result.push_back(3 + static_cast<unsigned char>(byte));
    }
  }
  return result;
}

std::shared_ptr<const Tokenizer> built(const GgufTokenizer& spec) {
  const auto tokenizer = Tokenizer::from_gguf(spec);
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().message();
    return nullptr;
  }
  return *tokenizer;
}

TEST(GgufTokenizer, sentence_piece_merges_by_score) {
  std::mt19937 random(5);
  const std::vector<std::string> letters = {"a", "b", "c", "\u2581", "é"};
  for (int round = 0; round < 60; ++round) {
    std::vector<std::pair<std::string, float>> pieces;
    for (const std::string& letter : letters) {
      if (letter != "é" || round % 2 == 0) pieces.emplace_back(letter, -20.0f);
    }
    for (int i = 0; i < 25; ++i) {
      std::string piece;
      for (size_t n = 2 + random() % 3; n > 0; --n) piece += letters[random() % letters.size()];
      pieces.emplace_back(piece, -static_cast<float>(random() % 8));  // ties are meant
    }
    GgufTokenizer spec = sentence_piece_of(pieces);
    spec.add_space_prefix = false;
    const auto tokenizer = built(spec);
    ASSERT_NE(tokenizer, nullptr);
    for (int text_round = 0; text_round < 20; ++text_round) {
      std::string text, escaped;
      for (size_t n = random() % 30; n > 0; --n) {
        const std::string& letter = letters[random() % letters.size()];
        escaped += letter;
        text += letter == "\u2581" ? " " : letter;
      }
      ASSERT_EQ(tokenizer->encode(text, false, true).value(), plain_merge(spec, escaped)) << text;
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text, false, true).value(), false), text);
    }
  }
}

TEST(GgufTokenizer, sentence_piece_space_prefix_and_special_tokens) {
  GgufTokenizer spec = sentence_piece_of({{"\u2581", -1}, {"h", -2}, {"i", -3}, {"hi", -4}, {"\u2581hi", -5}});
  spec.add_bos = true;
  const auto tokenizer = built(spec);
  ASSERT_NE(tokenizer, nullptr);
  const TokenId hi = 3 + 256 + 4;
  EXPECT_EQ(tokenizer->encode("hi", true, true).value(), (std::vector<TokenId>{1, hi}));
  EXPECT_EQ(tokenizer->encode("hi</s>hi", false, true).value(), (std::vector<TokenId>{hi, 2, hi}));
  EXPECT_EQ(tokenizer->encode("", true, true).value(), (std::vector<TokenId>{1}));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, hi, hi}, true), "hi hi");
  const auto plain = tokenizer->encode("</s>", false, false).value();
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xE9), "\xE9");
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(hi));
}

GgufTokenizer byte_level_spec() {
  GgufTokenizer spec;
  spec.model = "gpt2";
  spec.pre = "smollm";
  for (int c = 0x21; c < 0x7F; ++c) spec.tokens.push_back(std::string(1, static_cast<char>(c)));
  for (const char* token : {"Ġ", "Ċ", "he", "ll", "Ġhe", "<|im_end|>", "<tool>", "12"}) spec.tokens.push_back(token);
  spec.types.assign(spec.tokens.size(), kNormal);
  spec.types[spec.tokens.size() - 3] = kControl;
  spec.types[spec.tokens.size() - 2] = kUserDefined;
  spec.merges = {"h e", "l l", "Ġ he", "1 2"};
  return spec;
}

TEST(GgufTokenizer, byte_level_merges_and_splits) {
  const auto tokenizer = built(byte_level_spec());
  ASSERT_NE(tokenizer, nullptr);
  const auto spelled = [&](const std::string& text) {
    std::string joined;
    const std::vector<TokenId> ids = tokenizer->encode(text, false, true).value();
    for (const TokenId id : ids) joined += tokenizer->id_to_token(id) + " ";
    return joined;
  };
  EXPECT_EQ(spelled("hello hello"), "he ll o Ġhe ll o ");
  EXPECT_EQ(spelled("12"), "1 2 ");  // smollm cuts digits apart, so that merge never happens
  EXPECT_EQ(spelled("a<|im_end|><tool>"), "a <|im_end|> <tool> ");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello\n hello", false, true).value(), false), "hello\n hello");
}

TEST(GgufTokenizer, refuses_what_it_does_not_know) {
  const auto error_of = [](const GgufTokenizer& spec) {
    const auto tokenizer = Tokenizer::from_gguf(spec);
    return tokenizer ? std::string("loaded") : tokenizer.error().message();
  };
  GgufTokenizer spec = byte_level_spec();
  spec.pre = "quantum-bpe";
  EXPECT_NE(error_of(spec).find("'quantum-bpe'"), std::string::npos);
  spec = byte_level_spec();
  spec.model = "rwkv";
  EXPECT_NE(error_of(spec).find("'rwkv'"), std::string::npos);
  spec = byte_level_spec();
  spec.merges.push_back("nospace");
  EXPECT_NE(error_of(spec).find("tokenizer.ggml.merges: 'nospace' has no space"), std::string::npos);
  spec = byte_level_spec();
  spec.merges.push_back("\x1b[31m\n\xe2\x80\xae" + std::string(1000, 'x'));
  const std::string hostile = error_of(spec);
  EXPECT_NE(hostile.find("tokenizer.ggml.merges: '\\u{1b}[31m\\n\\u{202e}xxx"), std::string::npos) << hostile;
  EXPECT_LT(hostile.size(), 200u);
  spec = byte_level_spec();
  spec.merges.push_back("zz\n yy");
  EXPECT_NE(error_of(spec).find("tokenizer.ggml.merges: '"), std::string::npos);
  EXPECT_EQ(error_of(spec).find('\n'), std::string::npos);
  spec = byte_level_spec();
  spec.types.pop_back();
  EXPECT_NE(error_of(spec).find("token_type"), std::string::npos);
  spec = byte_level_spec();
  spec.add_bos = true;
  EXPECT_NE(error_of(spec).find("bos"), std::string::npos);
  spec = byte_level_spec();
  spec.eos = 1 << 20;
  EXPECT_NE(error_of(spec).find("eos"), std::string::npos);
  spec = sentence_piece_of({{"a", 1}});
  spec.scores.clear();
  EXPECT_NE(error_of(spec).find("scores"), std::string::npos);
  spec = sentence_piece_of({{"a", 1}});
  spec.tokens[100] = "gone";
  spec.unk.reset();
  EXPECT_NE(error_of(spec).find("0x61"), std::string::npos);
  EXPECT_NE(error_of({}).find("token"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
