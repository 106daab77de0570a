#include "base/request_queue.h"

namespace tailrace {

Status RequestQueue::push(std::vector<std::shared_ptr<const Request>> requests) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Status(StatusCode::kUnavailable, "the server is shutting down");
    if (queue_.size() + waiting_in_engine_ + requests.size() > capacity_) {
      return Status(StatusCode::kResourceExhausted,
                    "the request queue is full (" + std::to_string(capacity_) + " requests); try again later");
    }
    for (auto& request : requests) queue_.push_back(std::move(request));
  }
  ready_.notify_one();
  return Status();
}

std::vector<std::shared_ptr<const Request>> RequestQueue::take(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) {
    ready_.wait_for(lock, timeout, [&] { return !queue_.empty() || woken_ || closed_; });
  }
  woken_ = false;
  std::vector<std::shared_ptr<const Request>> out(queue_.begin(), queue_.end());
  waiting_in_engine_ += out.size();
  queue_.clear();
  return out;
}

void RequestQueue::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  ready_.notify_one();
}

void RequestQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ready_.notify_one();
}

void RequestQueue::set_waiting_in_engine(size_t count) {
  std::lock_guard lock(mutex_);
  waiting_in_engine_ = count;
}

size_t RequestQueue::depth() const {
  std::lock_guard lock(mutex_);
  return queue_.size() + waiting_in_engine_;
}

}  // namespace tailrace
