#include "output/llama_calls.h"

#include <algorithm>

namespace tailrace {

void LlamaCalls::text(std::string_view text, OutputSink& out) {
  while (!text.empty()) {
    if (!may_begin_) return gate_.text(text, out);
    if (!call_) {
      const size_t begin = std::min(text.find_first_not_of(after_call_ ? " \n\r\t;" : " \n\r\t"), text.size());
      separator_ += text.substr(0, begin);
      text.remove_prefix(begin);
      if (text.empty()) return;
      if (text[0] != '{') {
        may_begin_ = false;
        gate_.text(std::exchange(separator_, {}), out);
        continue;
      }
      call_.emplace(*tools_);
      reported_ = false;
    }
    text.remove_prefix(call_->push(text, out));
    if (call_->begun() && !std::exchange(reported_, true)) {
      gate_.call_began();
      separator_.clear();
    }
    if (call_->state() == CallJson::State::kOpen) return;
    after_call_ = call_->state() == CallJson::State::kDone;
    may_begin_ = after_call_;
    if (!after_call_) gate_.text(std::exchange(separator_, {}) + call_->unread(), out);
    call_.reset();
  }
}

void LlamaCalls::marker(int, std::string_view spelling, OutputSink& out) {
  if (call_ && !call_->ended()) return text(spelling, out);
  call_.reset();
  gate_.text(std::exchange(separator_, {}), out);
  separator_ = spelling;
  may_begin_ = true;
}

void LlamaCalls::finish(OutputSink& out) {
  if (call_) {
    call_->finish(out);
    if (call_->state() == CallJson::State::kFailed) gate_.text(separator_ + call_->unread(), out);
  } else if (!separator_.empty()) {
    gate_.text(separator_, out);
  }
  gate_.finish(out);
}

}  // namespace tailrace
