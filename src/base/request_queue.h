// The bounded queue of accepted requests from server threads to the engine thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/request.h"

namespace tailrace {

class RequestQueue {
 public:
  // capacity: requests that are accepted but not yet running (queued here or waiting in the scheduler).
  explicit RequestQueue(size_t capacity) : capacity_(capacity) {}

  // Accepts all requests or none. kResourceExhausted when full (503 with Retry-After), kUnavailable when closed.
  Status push(std::vector<std::shared_ptr<const Request>> requests);

  // Engine thread: moves out everything queued; waits up to `timeout` if there is nothing, until push or wake.
  std::vector<std::shared_ptr<const Request>> take(std::chrono::microseconds timeout);

  // Makes a waiting take() return: after a cancel, or at shutdown.
  void wake();
  // No further push succeeds.
  void close();
  // The engine says how many requests it holds that do not run yet: they count against the capacity.
  void set_waiting_in_engine(size_t count);

  size_t depth() const;  // queued here and waiting in the engine
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<const Request>> queue_;
  size_t waiting_in_engine_ = 0;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace tailrace
