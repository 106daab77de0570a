#include "output/tagged_json_calls.h"

#include <algorithm>

namespace tailrace {
namespace {

enum Marker { kOpen, kClose };

}  // namespace

void TaggedJsonCalls::text(std::string_view text, OutputSink& out) {
  if (!call_) return gate_.text(text, out);
  const size_t taken = call_->push(text, out);
  if (call_->begun() && !std::exchange(reported_, true)) gate_.call_began();
  std::string_view rest = text.substr(taken);
  if (call_->state() == CallJson::State::kOpen) return;
  if (call_->state() == CallJson::State::kDone) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \n\r\t"), rest.size()));
    if (rest.empty()) return;
  }
  give_up(rest, out);
}

// The call ends here, or never was one; what follows is content.
void TaggedJsonCalls::give_up(std::string_view rest, OutputSink& out) {
  const std::string text = (call_->begun() ? "" : opening_) + call_->unread() + std::string(rest);
  call_.reset();
  gate_.text(text, out);
}

void TaggedJsonCalls::marker(int index, std::string_view spelling, OutputSink& out) {
  const bool over = !call_ || (call_->ended() && !call_->in_arguments_string());
  if (!over) return text(spelling, out);
  if (index == kOpen) {
    call_.emplace(*tools_);
    opening_ = spelling;
    reported_ = false;
  } else if (call_) {
    call_.reset();
  } else {
    text(spelling, out);
  }
}

void TaggedJsonCalls::finish(OutputSink& out) {
  if (call_) {
    call_->finish(out);
    if (call_->state() == CallJson::State::kFailed) give_up("", out);
  }
  gate_.finish(out);
}

}  // namespace tailrace
