#include "output/json_stream.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "output/json_text.h"

namespace tailrace {
namespace {

constexpr size_t kMaxScalarBytes = 1024;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_plain(char c) { return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// RFC 8259, section 6.
bool is_number(std::string_view text) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t from = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > from;
  };
  if (at < text.size() && text[at] == '-') ++at;
  if (at < text.size() && text[at] == '0') {
    ++at;
  } else if (!digits()) {
    return false;
  }
  if (at < text.size() && text[at] == '.' && (++at, !digits())) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return false;
  }
  return at == text.size();
}

// The JSON of a word or a number; "" for anything else.
std::string_view scalar_json(std::string_view text) {
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text == word) return word;
  }
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  if (!is_number(text)) return {};
  return std::isfinite(std::strtod(std::string(text).c_str(), nullptr)) ? text : "null";
}

}  // namespace

size_t JsonStream::push(std::string_view text, std::string* out) {
  size_t at = 0;
  while (at < text.size() && state_ == State::kOpen) {
    if (const size_t run = plain_run(text.substr(at), out); run > 0) {
      at += run;
      continue;
    }
    unwritten_ += text[at];
    if (!step(text[at], out)) {
      if (!unwritten_.empty()) unwritten_.pop_back();
      break;
    }
    ++at;
  }
  return at;
}

// A stretch of string content that means itself.
size_t JsonStream::plain_run(std::string_view text, std::string* out) {
  if (expect_ != Expect::kString && expect_ != Expect::kKeyText) return 0;
  if (!escape_.empty() || high_surrogate_ != 0) return 0;
  const auto end = std::find_if_not(text.begin(), text.end(), is_plain);
  const auto run = static_cast<size_t>(end - text.begin());
  unwritten_ += text.substr(0, run);
  put(text.substr(0, run), out);
  return run;
}

bool JsonStream::step(char c, std::string* out) {
  if (expect_ == Expect::kString || expect_ == Expect::kKeyText) return string_byte(c, out);
  if (expect_ == Expect::kScalar) {
    if (!is_json_space(c) && c != ',' && c != ']' && c != '}') {
      scalar_ += c;
      return scalar_.size() <= kMaxScalarBytes || broken();
    }
    if (!end_scalar(out) || state_ == State::kDone) return false;
    unwritten_ = c;
  }
  if (is_json_space(c)) return true;
  switch (expect_) {
    case Expect::kValue: return begin_value(c, out);
    case Expect::kValueOrEnd: return c == ']' ? end_container(c, out) : begin_value(c, out);
    case Expect::kKeyOrEnd:
      if (c == '}') return end_container(c, out);
      if (c != '"') return broken();
      expect_ = Expect::kKeyText;
      key_ = c;
      return true;
    case Expect::kColon:
      if (c != ':') return broken();
      expect_ = Expect::kValue;
      return true;
    default:
      if (c != ',') return end_container(c, out);
      expect_ = stack_.back().object ? Expect::kKeyOrEnd : Expect::kValueOrEnd;
      return true;
  }
}

bool JsonStream::begin_value(char c, std::string* out) {
  if (object_only_ && stack_.empty() && c != '{') return broken();
  if (c == '{' || c == '[') {
    if (stack_.size() >= max_depth_) return broken();
    announce(out);
    write({&c, 1}, out);
    stack_.push_back({c == '{', true, {}});
    expect_ = c == '{' ? Expect::kKeyOrEnd : Expect::kValueOrEnd;
    return true;
  }
  if (c == '"') {
    announce(out);
    write("\"", out);
    expect_ = Expect::kString;
    return true;
  }
  if (!is_digit(c) && c != '-' && std::string_view("tfnTFN").find(c) == std::string_view::npos) return broken();
  scalar_ = c;
  expect_ = Expect::kScalar;
  return true;
}

bool JsonStream::string_byte(char c, std::string* out) {
  if (!escape_.empty()) {
    escape_byte(c, out);
    return true;
  }
  if (c == '\\') {
    escape_ = c;
    return true;
  }
  flush_surrogate(out);
  if (c != '"') {
    put_byte(c, out);
  } else if (expect_ == Expect::kKeyText) {
    key_ += c;
    end_key();
  } else {
    write("\"", out);
    end_value();
  }
  return true;
}

void JsonStream::escape_byte(char c, std::string* out) {
  const bool unicode = escape_.size() > 1;
  if (!unicode && c == 'u') {
    escape_ += c;
    return;
  }
  if (!unicode) {
    constexpr std::string_view kNames = "\"\\/bfnrt'", kValues = "\"\\/\b\f\n\r\t'";
    escape_.clear();
    flush_surrogate(out);
    const size_t known = kNames.find(c);
    if (known == std::string_view::npos) put_byte('\\', out);  // "\d": the backslash was meant
    put_byte(known == std::string_view::npos ? c : kValues[known], out);
    return;
  }
  if (hex_value(c) < 0) {  // no escape after all
    const std::string literal = std::exchange(escape_, {});
    flush_surrogate(out);
    for (const char byte : literal) put_byte(byte, out);
    string_byte(c, out);
    return;
  }
  escape_ += c;
  if (escape_.size() < 6) return;
  uint32_t unit = 0;
  for (const char digit : escape_.substr(2)) unit = unit * 16 + static_cast<uint32_t>(hex_value(digit));
  escape_.clear();
  code_unit(unit, out);
}

// UTF-16 halves are joined; one without its other half is U+FFFD.
void JsonStream::code_unit(uint32_t unit, std::string* out) {
  const bool low = unit >= 0xDC00 && unit < 0xE000;
  if (high_surrogate_ != 0 && low) {
    const uint32_t high = std::exchange(high_surrogate_, 0);
    return put_code_point(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00), out);
  }
  flush_surrogate(out);
  if (unit >= 0xD800 && unit < 0xDC00) {
    high_surrogate_ = unit;
  } else if (low) {
    put(kReplacement, out);
  } else {
    put_code_point(unit, out);
  }
}

void JsonStream::flush_surrogate(std::string* out) {
  if (std::exchange(high_surrogate_, 0) != 0) put(kReplacement, out);
}

void JsonStream::put_code_point(uint32_t code, std::string* out) {
  if (code < 0x80) return put_byte(static_cast<char>(code), out);
  char text[4];
  size_t size = 0;
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (code < 0x800) {
    text[size++] = static_cast<char>(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    text[size++] = static_cast<char>(0xE0 | (code >> 12));
    text[size++] = tail(code >> 6);
  } else {
    text[size++] = static_cast<char>(0xF0 | (code >> 18));
    text[size++] = tail(code >> 12);
    text[size++] = tail(code >> 6);
  }
  text[size++] = tail(code);
  put({text, size}, out);
}

bool JsonStream::end_scalar(std::string* out) {
  const std::string_view json = scalar_json(scalar_);
  if (json.empty()) return broken();
  announce(out);
  write(json, out);
  end_value();
  return true;
}

bool JsonStream::end_container(char c, std::string* out) {
  if (c != (stack_.back().object ? '}' : ']')) return broken();
  write({&c, 1}, out);
  stack_.pop_back();
  end_value();
  return true;
}

void JsonStream::end_value() {
  if (muted_depth_ != 0 && stack_.size() <= muted_depth_) {
    muted_depth_ = 0;
    unwritten_.clear();
  }
  expect_ = Expect::kCommaOrEnd;
  if (stack_.empty()) state_ = State::kDone;
}

void JsonStream::end_key() {
  expect_ = Expect::kColon;
  if (muted_depth_ == 0 && !stack_.back().keys.insert(key_).second) muted_depth_ = stack_.size();
}

void JsonStream::announce(std::string* out) {
  if (stack_.empty() || muted_depth_ != 0) return;
  Frame& frame = stack_.back();
  if (!frame.empty) write(",", out);
  frame.empty = false;
  if (!frame.object) return;
  write(key_, out);
  write(":", out);
}

void JsonStream::write(std::string_view text, std::string* out) {
  if (muted_depth_ != 0) return;
  out->append(text);
  unwritten_.clear();
  wrote_ = true;
}

void JsonStream::put(std::string_view text, std::string* out) {
  if (expect_ == Expect::kKeyText) {
    key_ += text;
  } else {
    write(text, out);
  }
}

void JsonStream::put_byte(char c, std::string* out) {
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kEscaped = "\"\\bfnrt";
  if (const size_t at = kPlain.find(c); at != std::string_view::npos) {
    const char text[2] = {'\\', kEscaped[at]};
    put({text, 2}, out);
  } else if (static_cast<unsigned char>(c) < 0x20) {
    char text[8];
    std::snprintf(text, sizeof text, "\\u%04x", static_cast<unsigned>(c));
    put(text, out);
  } else {
    put({&c, 1}, out);
  }
}

bool JsonStream::broken() {
  state_ = State::kBroken;
  return false;
}

void JsonStream::end_of_input(std::string* out) {
  if (state_ != State::kOpen) return;
  if (expect_ == Expect::kScalar && stack_.empty()) end_scalar(out);
  if (state_ == State::kOpen) state_ = State::kBroken;
}

void JsonStream::close(std::string* out) {
  if (state_ == State::kDone) return;
  if (muted_depth_ != 0) {
    stack_.resize(muted_depth_);
    muted_depth_ = 0;
  } else if (expect_ == Expect::kString) {
    flush_surrogate(out);
    write("\"", out);
  }
  for (; !stack_.empty(); stack_.pop_back()) write(stack_.back().object ? "}" : "]", out);
  if (!wrote_) write(object_only_ ? "{}" : "null", out);
  state_ = State::kDone;
}

}  // namespace tailrace
