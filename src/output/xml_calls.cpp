#include "output/xml_calls.h"

#include "output/json_text.h"

namespace tailrace {
namespace {

enum Marker { kCall, kCallEnd, kFunction, kFunctionEnd, kParameter, kParameterEnd };

constexpr size_t kMaxKeyBytes = 256;

bool is_blank(std::string_view text) { return text.find_first_not_of(" \n\r\t") == std::string_view::npos; }

}  // namespace

std::vector<std::string> XmlCalls::markers() const {
  return {"<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"};
}

void XmlCalls::begin(State state, std::string_view spelling) {
  state_ = state;
  raw_ = spelling;
  call_.reset();
  function_.clear();
  key_.clear();
  any_parameter_ = false;
}

void XmlCalls::text(std::string_view text, OutputSink& out) {
  if (text.empty()) return;
  switch (state_) {
    case State::kIdle: return gate_.text(text, out);
    case State::kName: return read_name(text, out);
    case State::kKey: return read_key(text, out);
    case State::kValue: return value_text(text, out);
    case State::kMaybeNext:
    case State::kMaybeEnd:
      if (!is_blank(text)) return value_goes_on(text, out);
      tail_ += text;
      return;
    case State::kOpened:
    case State::kBetween:
      if (!is_blank(text)) return give_up(text, out);
      raw_ += text;
      return;
    case State::kEnded:
      if (!is_blank(text)) give_up(text.substr(text.find_first_not_of(" \n\r\t")), out);
  }
}

void XmlCalls::marker(int index, std::string_view spelling, OutputSink& out) {
  switch (state_) {
    case State::kMaybeNext:
      if (index == kParameter) {
        end_value(out);
        state_ = State::kKey;
        raw_ = spelling;
      } else if (index == kFunctionEnd) {
        state_ = State::kMaybeEnd;
        tail_ += spelling;
      } else {
        value_goes_on("", out);
        marker(index, spelling, out);
      }
      return;
    case State::kMaybeEnd:
      if (index != kCallEnd && index != kCall && index != kFunction) {
        value_goes_on("", out);
        return marker(index, spelling, out);
      }
      end_value(out);
      end_call(out);
      return marker(index, spelling, out);
    case State::kValue:
      if (index != kParameterEnd) return value_text(spelling, out);
      state_ = State::kMaybeNext;
      tail_ += spelling;
      return;
    case State::kBetween:
      if (index == kFunctionEnd) return end_call(out);
      if (index != kParameter) return give_up(spelling, out);
      state_ = State::kKey;
      raw_ += spelling;
      return;
    case State::kOpened:
      if (index != kFunction) return give_up(spelling, out);
      state_ = State::kName;
      raw_ += spelling;
      return;
    case State::kName: return read_name(spelling, out);
    case State::kKey: return read_key(spelling, out);
    case State::kIdle:
    case State::kEnded:
      if (index == kCall) return begin(State::kOpened, spelling);
      if (index == kFunction) return begin(State::kName, spelling);
      if (index == kCallEnd && state_ == State::kEnded) return begin(State::kIdle, "");
      state_ = State::kIdle;
      gate_.text(spelling, out);
  }
}

void XmlCalls::read_name(std::string_view text, OutputSink& out) {
  const size_t end = text.find('>');
  function_ += text.substr(0, end);
  if (end == std::string_view::npos ? !tools_->may_begin(function_) : !tools_->has(function_)) {
    return give_up(text, out);
  }
  raw_ += text.substr(0, end);
  if (end == std::string_view::npos) return;
  raw_ += '>';
  call_.emplace(function_);
  state_ = State::kBetween;
  this->text(text.substr(end + 1), out);
}

void XmlCalls::read_key(std::string_view text, OutputSink& out) {
  const size_t end = text.find('>');
  const std::string_view part = text.substr(0, end);
  const bool over = end != std::string_view::npos;
  const bool bad = part.find_first_of("<\n\r\"") != std::string_view::npos ||
                   key_.size() + part.size() > kMaxKeyBytes || (over && key_.empty() && part.empty());
  if (bad) return give_up(text, out);
  raw_ += part;
  key_ += part;
  if (!over) return;
  begin_value(std::exchange(key_, {}), out);
  this->text(text.substr(end + 1), out);
}

void XmlCalls::begin_value(std::string_view key, OutputSink& out) {
  raw_.clear();
  gate_.call_began();
  push((any_parameter_ ? "," : "{") + json_quoted(key) + ":", out);
  any_parameter_ = true;
  is_string_ = tools_->type_of(function_, key) == ParameterType::kString;
  if (is_string_) push("\"", out);
  state_ = State::kValue;
  first_in_value_ = true;
  value_.clear();
  tail_.clear();
}

// Holds one line break at the end back: it may belong to the closing tag.
void XmlCalls::value_text(std::string_view text, OutputSink& out) {
  if (std::exchange(first_in_value_, false) && text.starts_with('\n')) text.remove_prefix(1);
  if (text.empty()) return;
  std::string all = std::exchange(tail_, {}) + std::string(text);
  if (all.back() == '\n') {
    tail_ = "\n";
    all.pop_back();
  }
  if (is_string_) {
    push(json_escaped(all), out);
  } else {
    value_ += all;
  }
}

void XmlCalls::value_goes_on(std::string_view text, OutputSink& out) {
  const std::string all = std::exchange(tail_, {}) + std::string(text);
  state_ = State::kValue;
  value_text(all, out);
}

void XmlCalls::end_value(OutputSink& out) {
  push(is_string_ ? "\"" : json_value_or_string(value_), out);
  tail_.clear();
}

void XmlCalls::end_call(OutputSink& out) {
  gate_.call_began();
  push(any_parameter_ ? "}" : "{}", out);
  begin(State::kEnded, "");
}

void XmlCalls::push(std::string_view json, OutputSink& out) { call_->push(json, out); }

// Not a call, or one that breaks here: what was not reported is content, and so is `text`.
void XmlCalls::give_up(std::string_view text, OutputSink& out) {
  if (call_ && call_->begun()) call_->finish(out);
  const std::string all = std::exchange(raw_, {}) + std::string(text);
  begin(State::kIdle, "");
  gate_.text(all, out);
}

void XmlCalls::finish(OutputSink& out) {
  switch (state_) {
    case State::kMaybeEnd:
      end_value(out);
      end_call(out);
      break;
    case State::kMaybeNext:
      end_value(out);
      call_->finish(out);
      break;
    case State::kIdle:
    case State::kEnded: break;
    default:
      if (call_ && call_->begun()) {
        call_->finish(out);
      } else {
        give_up("", out);
      }
  }
  gate_.finish(out);
}

}  // namespace tailrace
