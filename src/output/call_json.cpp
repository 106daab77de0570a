#include "output/call_json.h"

#include <utility>

#include "output/json_text.h"

namespace tailrace {
namespace {

constexpr size_t kMaxKeyBytes = 16;  // the longest key of a call has ten

}  // namespace

size_t CallJson::push(std::string_view text, OutputSink& out) {
  size_t at = 0;
  while (at < text.size() && state_ == State::kOpen) {
    const bool arguments = expect_ == Expect::kArguments;
    const size_t taken = arguments ? push_arguments(text.substr(at), out) : (step(text[at], out) ? 1 : 0);
    if (state_ != State::kDone && (!begun_ || (ended_ && !arguments))) unread_ += text.substr(at, taken);
    at += taken;
    if (taken == 0 && !arguments) break;
  }
  return at;
}

bool CallJson::step(char c, OutputSink& out) {
  switch (expect_) {
    case Expect::kKeyText:
      if (c == '"') return end_key();
      key_ += c;
      return (key_.size() <= kMaxKeyBytes && c != '\\') || fail_here();
    case Expect::kName:
      if (c == '"') {
        has_name_ = true;
        expect_ = Expect::kCommaOrEnd;
        if (!tools_.has(name_)) return fail_here();
        begin_if_known(out);
        return true;
      }
      name_ += c;
      return tools_.may_begin(name_) || fail_here();
    case Expect::kOther:
      if (c == '"') expect_ = Expect::kCommaOrEnd;
      return (c != '\\' && c != '\n') || fail_here();
    default: break;
  }
  if (is_json_space(c)) return true;
  switch (expect_) {
    case Expect::kObject:
      expect_ = Expect::kKeyOrEnd;
      return c == '{' || fail_here();
    case Expect::kKeyOrEnd:
    case Expect::kKey:
      if (c == '}' && expect_ == Expect::kKeyOrEnd) return end_object(out);
      expect_ = Expect::kKeyText;
      key_.clear();
      return c == '"' || fail_here();
    case Expect::kColon:
      expect_ = Expect::kValue;
      return c == ':' || fail_here();
    case Expect::kValue: return begin_value(c, out);
    default:
      if (c == '}') return end_object(out);
      expect_ = Expect::kKey;
      return c == ',' || fail_here();
  }
}

bool CallJson::end_key() {
  expect_ = Expect::kColon;
  const bool arguments = key_ == "arguments" || key_ == "parameters";
  if (arguments ? has_arguments_ : key_ == "name" ? has_name_ : key_ != "id" && key_ != "type") return fail_here();
  return true;
}

bool CallJson::begin_value(char c, OutputSink& out) {
  if (key_ == "arguments" || key_ == "parameters") {
    if (c != '{') return fail_here();
    has_arguments_ = true;
    expect_ = Expect::kArguments;
    begin_if_known(out);
    push_arguments("{", out);
    return true;
  }
  expect_ = key_ == "name" ? Expect::kName : Expect::kOther;
  return c == '"' || fail_here();
}

size_t CallJson::push_arguments(std::string_view text, OutputSink& out) {
  std::string json;
  const size_t taken = arguments_.push(text, &json);
  if (begun_) {
    out.arguments(json);
  } else {
    early_ += json;
  }
  if (arguments_.state() == JsonStream::State::kBroken) {
    fail_here();
    if (!begun_) return taken;
    unread_ = arguments_.unwritten();
    end_arguments(out, false);
  } else if (arguments_.state() == JsonStream::State::kDone) {
    expect_ = Expect::kCommaOrEnd;
    if (begun_) end_arguments(out, true);
  }
  return taken;
}

void CallJson::begin_if_known(OutputSink& out) {
  if (begun_ || !has_name_ || !has_arguments_) return;
  begun_ = true;
  unread_.clear();
  out.begin_call(name_);
  out.arguments(std::exchange(early_, {}));
  if (arguments_.state() == JsonStream::State::kDone) end_arguments(out, true);
}

void CallJson::end_arguments(OutputSink& out, bool complete) {
  if (std::exchange(ended_, true)) return;
  std::string json;
  arguments_.close(&json);
  out.arguments(json);
  out.end_call(complete);
}

bool CallJson::end_object(OutputSink& out) {
  if (!has_name_) return fail_here();
  if (!has_arguments_) {  // a call without arguments
    has_arguments_ = true;
    begin_if_known(out);
    end_arguments(out, true);
  }
  state_ = State::kDone;
  unread_.clear();
  return true;
}

bool CallJson::fail_here() {
  state_ = begun_ ? State::kBroken : State::kFailed;
  return false;
}

void CallJson::interrupt(OutputSink& out) {
  if (state_ != State::kOpen) return;
  if (begun_ && !ended_) unread_ = arguments_.unwritten();
  if (begun_) end_arguments(out, false);
  fail_here();
}

void CallJson::finish(OutputSink& out) {
  if (begun_) end_arguments(out, false);
  if (state_ == State::kOpen) fail_here();
}

}  // namespace tailrace
