#include "text/detokenizer.h"

#include <algorithm>

namespace tailrace {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How a sequence that starts with `lead` goes on: its length (0: `lead` starts none) and the bounds of the second byte.
struct Lead {
  size_t len;
  unsigned char second_low, second_high;
};

Lead lead_of(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes at the front of `bytes` that form a whole character, or a maximal subpart of one.
struct Front {
  size_t len;
  enum { kWhole, kIncomplete, kInvalid } kind;
};

Front front_of(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[0]));
  if (lead.len <= 1) return {1, lead.len == 1 ? Front::kWhole : Front::kInvalid};
  for (size_t i = 1; i < lead.len; ++i) {
    if (i == bytes.size()) return {i, Front::kIncomplete};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {i, Front::kInvalid};
  }
  return {lead.len, Front::kWhole};
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (tail_len_ > 0) {
    joined.assign(tail_, tail_len_);
    joined.append(bytes);
    bytes = joined;
    tail_len_ = 0;
  }
  while (!bytes.empty()) {
    const Front front = front_of(bytes);
    if (front.kind == Front::kIncomplete) {
      tail_len_ = bytes.copy(tail_, front.len);
      return;
    }
    out->append(front.kind == Front::kWhole ? bytes.substr(0, front.len) : kReplacement);
    bytes.remove_prefix(front.len);
  }
}

void Utf8Stream::finish(std::string* out) {
  if (tail_len_ > 0) out->append(kReplacement);
  tail_len_ = 0;
}

DecodeState::DecodeState(const Tokenizer& tokenizer, bool skip_special, TextPosition position)
    : tokenizer_(tokenizer), skip_special_(skip_special) {
  if (position == TextPosition::kBegin) {
    strip_left_ = tokenizer.decode_rule().strip_count;
  } else {
    first_ = false;
  }
}

void DecodeState::push(TokenId id, std::string* out) {
  if (id < 0 || id >= tokenizer_.vocab_size() || (skip_special_ && tokenizer_.is_special(id))) return;
  const Tokenizer::DecodeRule& rule = tokenizer_.decode_rule();
  std::string own;
  std::string_view bytes = tokenizer_.token_bytes(id);
  if (first_ && rule.first_drops_meta) {
    own = tokenizer_.first_token_bytes(id);
    bytes = own;
  }
  if (!first_) utf8_.push(rule.join, out);
  first_ = false;
  while (strip_left_ > 0 && !bytes.empty()) {
    if (bytes[0] != rule.strip[0]) {
      strip_left_ = 0;
    } else {
      bytes.remove_prefix(1);
      --strip_left_;
    }
  }
  utf8_.push(bytes, out);
}

}  // namespace tailrace
