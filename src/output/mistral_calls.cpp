#include "output/mistral_calls.h"

#include <algorithm>

#include "output/json_text.h"

namespace tailrace {
namespace {

enum Marker { kCalls, kArgs, kId };

constexpr size_t kMaxCallIdBytes = 64;

}  // namespace

void MistralCalls::text(std::string_view text, OutputSink& out) {
  while (!text.empty()) {
    if (state_ == State::kIdle) return gate_.text(text, out);
    if (!step(text, out)) return give_up(text, out);
  }
}

// Takes a beginning of `text`; false: it does not go on a call.
bool MistralCalls::step(std::string_view& text, OutputSink& out) {
  const char c = text[0];
  switch (state_) {
    case State::kObject: return read_object(text, out), true;
    case State::kArguments: return read_arguments(text, out);
    case State::kName:
      if (c == '{' && tools_->has(name_)) return begin_arguments(), true;
      if (!tools_->may_begin(name_ + c)) return false;
      name_ += c;
      break;
    case State::kCallId:
      if (raw_.size() > name_.size() + kMaxCallIdBytes) return false;
      break;
    case State::kSeparator:
    case State::kElement:
    case State::kTagged: {
      const bool element = state_ != State::kSeparator;
      if (is_json_space(c)) break;
      if (c == '{' && element) {
        object_.emplace(*tools_);
        state_ = State::kObject;
        return true;
      }
      if (state_ == State::kTagged && c == '[') {
        in_array_ = true;
        state_ = State::kElement;
      } else if (state_ == State::kTagged) {
        state_ = State::kName;
        return true;
      } else if (c == ']' || (c == ',' && !element)) {
        state_ = c == ',' ? State::kElement : State::kIdle;
        raw_.clear();
        text.remove_prefix(1);
        return true;
      } else {
        return false;
      }
      break;
    }
    case State::kIdle: return false;
  }
  raw_ += c;
  text.remove_prefix(1);
  return true;
}

void MistralCalls::read_object(std::string_view& text, OutputSink& out) {
  text.remove_prefix(object_->push(text, out));
  if (object_->begun()) {
    raw_.clear();
    gate_.call_began();
  }
  if (object_->state() == CallJson::State::kOpen) return;
  if (object_->state() == CallJson::State::kDone) {
    object_.reset();
    state_ = in_array_ ? State::kSeparator : State::kIdle;
  } else {
    give_up("", out);
  }
}

void MistralCalls::begin_arguments() {
  call_.emplace(name_);
  state_ = State::kArguments;
}

bool MistralCalls::read_arguments(std::string_view& text, OutputSink& out) {
  text.remove_prefix(call_->push(text, out));
  if (call_->begun()) {
    raw_.clear();
    gate_.call_began();
  }
  if (call_->broken()) return false;
  if (call_->ended()) state_ = State::kIdle;
  return true;
}

void MistralCalls::marker(int index, std::string_view spelling, OutputSink& out) {
  const bool in_string = (call_ && call_->in_string()) || (object_ && object_->in_arguments_string());
  if (in_string) return text(spelling, out);
  if (index == kArgs && (state_ == State::kName || state_ == State::kCallId) && tools_->has(name_)) {
    raw_ += spelling;
    return begin_arguments();
  }
  if (index == kId && state_ == State::kName && tools_->has(name_)) {
    raw_ += spelling;
    state_ = State::kCallId;
    return;
  }
  if (state_ != State::kIdle) give_up("", out);
  if (index != kCalls) return text(spelling, out);
  reset();
  raw_ = spelling;
  state_ = State::kTagged;
}

// The call breaks here, or never was one: what was not reported is content, and so is `text`.
void MistralCalls::give_up(std::string_view text, OutputSink& out) {
  std::string all = std::exchange(raw_, {});
  if (object_) {
    object_->interrupt(out);
    all += object_->unread();
  }
  if (call_) {
    call_->interrupt(out);
    all += call_->unread();
  }
  all += text;
  reset();
  gate_.text(all, out);
}

void MistralCalls::reset() {
  object_.reset();
  call_.reset();
  name_.clear();
  raw_.clear();
  in_array_ = false;
  state_ = State::kIdle;
}

void MistralCalls::finish(OutputSink& out) {
  if (object_ && object_->begun()) {
    object_->finish(out);
  } else if (call_ && call_->begun()) {
    call_->finish(out);
  } else if (state_ != State::kIdle) {
    give_up("", out);
  }
  gate_.finish(out);
}

}  // namespace tailrace
