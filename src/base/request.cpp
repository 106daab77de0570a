#include "base/request.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/check.h"

namespace tailrace {

void TokenStream::set_ready_callback(std::function<void()> callback) {
  std::function<void()> fire;
  {
    std::lock_guard lock(mutex_);
    ready_ = std::move(callback);
    if (!events_.empty()) fire = ready_;
  }
  if (fire) fire();
}

std::vector<TokenEvent> TokenStream::take(size_t most) {
  std::lock_guard lock(mutex_);
  const auto end = events_.begin() + static_cast<std::ptrdiff_t>(std::min(most, events_.size()));
  std::vector<TokenEvent> out(std::make_move_iterator(events_.begin()), std::make_move_iterator(end));
  events_.erase(events_.begin(), end);
  return out;
}

void TokenStream::push(TokenEvent event) {
  std::function<void()> fire;
  {
    std::lock_guard lock(mutex_);
    CHECK(!finished_);
    finished_ = event.kind == TokenEvent::Kind::kFinish;
    if (events_.empty()) fire = ready_;
    events_.push_back(std::move(event));
  }
  if (fire) fire();
}

uint64_t next_request_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tailrace
