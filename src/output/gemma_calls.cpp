#include "output/gemma_calls.h"

#include <algorithm>

#include "output/json_text.h"

namespace tailrace {
namespace {

enum Marker { kCall, kCallEnd, kQuote };

constexpr std::string_view kPrefix = "call:";
constexpr size_t kMaxKeyBytes = 256;

bool is_end(char c) { return c == ',' || c == '}' || c == ']'; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \n\r\t"), text.size());
  return text.substr(begin, text.find_last_not_of(" \n\r\t") + 1 - begin);
}

}  // namespace

void GemmaCalls::text(std::string_view text, OutputSink& out) {
  while (!text.empty()) {
    if (state_ == State::kIdle) return gate_.text(text, out);
    if (!step(text, out)) return give_up(text, out);
  }
}

// Takes a beginning of `text`; false: it does not go on a call.
bool GemmaCalls::step(std::string_view& text, OutputSink& out) {
  const char c = text[0];
  if (state_ == State::kHead) return head(text);
  if (state_ == State::kString || state_ == State::kQuotedKey) return quoted_text(text, out), true;
  if (state_ == State::kBare && is_end(c)) return end_bare(out), true;
  bool good = true;
  raw_ += c;
  switch (state_) {
    case State::kKey: good = key_byte(c, out); break;
    case State::kColon:
      good = is_json_space(c) || c == ':';
      if (c == ':') {
        good = push(json_quoted(std::exchange(word_, {})) + ":", out);
        state_ = State::kValue;
      }
      break;
    case State::kBare: word_ += c; break;
    case State::kValue: good = value_byte(c, out); break;
    case State::kNext: good = next_byte(c, out); break;
    default: good = is_json_space(c);  // after the arguments
  }
  if (state_ == State::kEnded) raw_.clear();
  if (good) {
    text.remove_prefix(1);
  } else if (!raw_.empty()) {
    raw_.pop_back();
  }
  return good;
}

// call:NAME{
bool GemmaCalls::head(std::string_view& text) {
  const char c = text[0];
  const std::string next = raw_.substr(tag_bytes_) + c;
  const bool in_prefix = next.size() <= kPrefix.size();
  const std::string_view name = in_prefix ? "" : std::string_view(next).substr(kPrefix.size());
  if (in_prefix ? !kPrefix.starts_with(next) : c != '{' && !tools_->may_begin(name)) return false;
  if (c == '{') {
    const std::string known(name.substr(0, name.size() - 1));
    if (!tools_->has(known)) return false;
    call_.emplace(known);
    open_ = {};
    state_ = State::kValue;  // the arguments are a value like another
    return true;
  }
  raw_ += c;
  text.remove_prefix(1);
  return true;
}

bool GemmaCalls::key_byte(char c, OutputSink& out) {
  if (word_.empty() && is_json_space(c)) return true;
  if (c == '}' && trimmed(word_).empty()) return next_byte(c, out);
  if (c == '"' && word_.empty()) {
    state_ = State::kQuotedKey;
    json_quotes_ = true;
    return true;
  }
  if (c == ':') {
    const std::string key(trimmed(std::exchange(word_, {})));
    state_ = State::kValue;
    return !key.empty() && push(json_quoted(key) + ":", out);
  }
  if (c == ',' || c == '{' || c == '}' || c == '[' || c == ']' || c == '"' || word_.size() >= kMaxKeyBytes) {
    return false;
  }
  word_ += c;
  return true;
}

bool GemmaCalls::value_byte(char c, OutputSink& out) {
  if (is_json_space(c)) return true;
  if (c == '{' || c == '[') {
    open_.push_back(c);
    state_ = c == '{' ? State::kKey : State::kValue;
    return push({&c, 1}, out);
  }
  if (c == '"') {
    state_ = State::kString;
    json_quotes_ = true;
    return push("\"", out);
  }
  if (c == ']') return next_byte(c, out);
  if (is_end(c)) return false;
  state_ = State::kBare;
  word_ = c;
  return true;
}

bool GemmaCalls::next_byte(char c, OutputSink& out) {
  if (is_json_space(c)) return true;
  if (open_.empty() || !is_end(c)) return false;
  if (c == ',') {
    state_ = open_.back() == '{' ? State::kKey : State::kValue;
    return push(",", out);
  }
  if ((c == '}') != (open_.back() == '{')) return false;
  open_.pop_back();
  state_ = open_.empty() ? State::kEnded : State::kNext;
  return push({&c, 1}, out);
}

// In a string or a quoted key: up to its end in JSON's quotes, which otherwise are text.
void GemmaCalls::quoted_text(std::string_view& text, OutputSink& out) {
  size_t end = 0;
  bool closed = false;
  for (; json_quotes_ && end < text.size() && !closed; ++end) {
    closed = text[end] == '"' && !escaped_;
    escaped_ = text[end] == '\\' && !escaped_;
  }
  if (!json_quotes_) end = text.size();
  const std::string_view inner = text.substr(0, closed ? end - 1 : end);
  raw_ += text.substr(0, end);
  text.remove_prefix(end);
  if (state_ == State::kQuotedKey) {
    word_ += inner;
  } else {
    push(json_quotes_ ? std::string(inner) : json_escaped(inner), out);
  }
  if (closed) quote(out);
}

// The end of a string or of a quoted key.
void GemmaCalls::quote(OutputSink& out) {
  if (state_ == State::kQuotedKey) {
    state_ = State::kColon;
    return;
  }
  push("\"", out);
  state_ = State::kNext;
}

void GemmaCalls::end_bare(OutputSink& out) {
  push(json_value_or_string(trimmed(word_)), out);
  word_.clear();
  state_ = State::kNext;
}

bool GemmaCalls::push(std::string_view json, OutputSink& out) {
  call_->push(json, out);
  if (call_->begun()) gate_.call_began();
  if (call_->all_written()) raw_.clear();
  return !call_->broken();
}

void GemmaCalls::marker(int index, std::string_view spelling, OutputSink& out) {
  const bool quoted = state_ == State::kString || state_ == State::kQuotedKey;
  if (index == kQuote && quoted && !json_quotes_) return quote(out);
  if (quoted) return text(spelling, out);
  if (index == kQuote && state_ == State::kValue) {
    state_ = State::kString;
    json_quotes_ = false;
    push("\"", out);
    return;
  }
  if (index == kQuote && state_ == State::kKey && trimmed(word_).empty()) {
    word_.clear();
    state_ = State::kQuotedKey;
    json_quotes_ = false;
    return;
  }
  if (state_ == State::kEnded && index == kCallEnd) return reset(State::kIdle);
  if (state_ == State::kEnded) reset(State::kIdle);
  if (state_ != State::kIdle) return give_up(spelling, out);
  if (index != kCall) return gate_.text(spelling, out);
  reset(State::kHead);
  raw_ = spelling;
  tag_bytes_ = raw_.size();
}

void GemmaCalls::reset(State state) {
  state_ = state;
  call_.reset();
  open_.clear();
  word_.clear();
  raw_.clear();
  escaped_ = false;
}

// The call breaks here, or never was one: what was not reported is content, and so is `text`.
void GemmaCalls::give_up(std::string_view text, OutputSink& out) {
  if (call_) call_->interrupt(out);
  const std::string all = std::exchange(raw_, {}) + std::string(text);
  reset(State::kIdle);
  gate_.text(all, out);
}

void GemmaCalls::finish(OutputSink& out) {
  if (call_ && call_->begun()) {
    call_->finish(out);
  } else if (state_ != State::kIdle) {
    give_up("", out);
  }
  gate_.finish(out);
}

}  // namespace tailrace
