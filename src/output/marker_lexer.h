// MarkerLexer: cuts a stream of tokens into markers ("<tool_call>") and the text between them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tailrace {

// A marker that the tokenizer has as a special token counts only as that token: its spelling in plain text is text.
// Any other one is found by its spelling, over any number of tokens. No marker may be the beginning of another.
class MarkerLexer {
 public:
  struct Piece {
    int marker = -1;  // index into the spellings; -1: text
    std::string text;  // a marker's spelling, "" where it was a token by itself
  };

  MarkerLexer(std::vector<std::string> spellings, const Tokenizer& tokenizer);

  bool is_control(TokenId id) const { return marker_of(id) >= 0; }
  void control(TokenId id, std::vector<Piece>* out);
  // Keeps back the longest end that is a proper beginning of a marker.
  void text(std::string_view text, std::vector<Piece>* out);
  void finish(std::vector<Piece>* out);

  size_t held_bytes() const { return held_.size(); }

 private:
  int marker_of(TokenId id) const;

  std::vector<std::string> spellings_;
  std::vector<TokenId> ids_;  // -1: found by spelling
  std::string held_;
};

}  // namespace tailrace
