#include "output/marker_lexer.h"

#include <gtest/gtest.h>

#include "support/small_tokenizers.h"

namespace tailrace {
namespace {

// "M" + index for markers, the text in brackets otherwise; neighbouring text joined.
std::string shown(const std::vector<MarkerLexer::Piece>& pieces) {
  std::string out;
  bool in_text = false;
  for (const auto& piece : pieces) {
    if (piece.marker < 0) {
      out += (in_text ? "" : "[") + piece.text;
    } else {
      out += (in_text ? "]M" : "M") + std::to_string(piece.marker);
    }
    in_text = piece.marker < 0;
  }
  return out + (in_text ? "]" : "");
}

class MarkerLexerTest : public ::testing::Test {
 protected:
  // <think> is user-defined there, <|im_end|> is control.
  const std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::from_gguf(small_byte_level()).value();
};

TEST_F(MarkerLexerTest, every_cut_finds_the_same) {
  const std::string text = "a<think>b</thin</think><<think>c<th";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    MarkerLexer lexer({"<think>", "</think>"}, *tokenizer_);
    std::vector<MarkerLexer::Piece> pieces;
    lexer.text(text.substr(0, cut), &pieces);
    lexer.text(text.substr(cut), &pieces);
    EXPECT_EQ(lexer.held_bytes(), 3u);
    lexer.finish(&pieces);
    EXPECT_EQ(shown(pieces), "[a]M0[b</thin]M1[<]M0[c<th]");
  }
}

TEST_F(MarkerLexerTest, a_special_token_counts_by_its_id_alone) {
  MarkerLexer lexer({"<|im_end|>", "<think>"}, *tokenizer_);
  EXPECT_TRUE(lexer.is_control(257));
  EXPECT_FALSE(lexer.is_control(258));
  EXPECT_FALSE(lexer.is_control(-1));
  std::vector<MarkerLexer::Piece> pieces;
  lexer.text("x<|im_end|>y<th", &pieces);
  lexer.control(257, &pieces);
  lexer.finish(&pieces);
  EXPECT_EQ(shown(pieces), "[x<|im_end|>y<th]M0");
}

TEST_F(MarkerLexerTest, only_a_beginning_of_a_marker_is_held) {
  MarkerLexer lexer({"<think>"}, *tokenizer_);
  std::vector<MarkerLexer::Piece> pieces;
  lexer.text("a < b <t", &pieces);
  EXPECT_EQ(shown(pieces), "[a < b ]");
  lexer.text("able>", &pieces);
  EXPECT_EQ(shown(pieces), "[a < b <table>]");
  EXPECT_EQ(lexer.held_bytes(), 0u);
}

}  // namespace
}  // namespace tailrace
