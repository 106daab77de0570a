// The text of one growing sequence: each pushed token gives the text that became certain, and only that.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tailrace {

// Takes bytes, appends UTF-8: holds back exactly an incomplete tail (1-3 bytes); what can never become valid is replaced
// by U+FFFD, one per maximal subpart (The Unicode Standard, section 3.9, table 3-8).
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string* out);
  void finish(std::string* out);  // an incomplete tail becomes one U+FFFD
  size_t held_bytes() const { return tail_len_; }

 private:
  char tail_[4] = {};
  size_t tail_len_ = 0;
};

// Where the tokens stand: strip rules ("the first space of a text is not text") apply only at a text's begin.
enum class TextPosition {
  kBegin,         // a text of its own: a chat reply, /detokenize
  kContinuation,  // goes on after a prompt whose end is text: /v1/completions
};

// The decoding rule itself, appending to a given string; Detokenizer and Tokenizer::decode share it.
class DecodeState {
 public:
  // `tokenizer` must outlive the object.
  DecodeState(const Tokenizer& tokenizer, bool skip_special, TextPosition position);
  void push(TokenId id, std::string* out);
  void finish(std::string* out) { utf8_.finish(out); }
  size_t held_bytes() const { return utf8_.held_bytes(); }

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  bool first_ = true;
  int32_t strip_left_ = 0;
  Utf8Stream utf8_;
};

// Costs O(bytes of the token) per push; never looks at earlier tokens again. Not thread-safe; one per sequence.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
              TextPosition position = TextPosition::kBegin)
      : tokenizer_(std::move(tokenizer)), state_(*tokenizer_, skip_special, position) {}

  // New text, possibly empty. The joined results and a last flush() equal Tokenizer::decode of all ids (at kBegin).
  std::string push(TokenId id) {
    std::string text;
    state_.push(id, &text);
    return text;
  }
  // Ends an incomplete character here: what was held back. At the sequence's end, or before a token that is no text.
  std::string flush() {
    std::string text;
    state_.finish(&text);
    return text;
  }
  // Bytes held back as an incomplete UTF-8 tail, 0..3.
  size_t held_bytes() const { return state_.held_bytes(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeState state_;
};

}  // namespace tailrace
