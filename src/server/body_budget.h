// The memory that request bodies, and what is parsed from them, may take, all connections together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

namespace tailrace {

class BodyBudget {
 public:
  // on_large_end: called where the last holder of a body lets go of it, when the body and what was parsed from it took
  // kLargeBytes or more; outlives every share.
  explicit BodyBudget(int64_t total_bytes, std::function<void()> on_large_end = nullptr)
      : total_bytes_(total_bytes), on_large_end_(std::move(on_large_end)) {}

  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // Thread-safe. False, and nothing is taken, when `bytes` more would exceed the total.
  bool take(int64_t bytes) {
    int64_t held = held_bytes_.load();
    do {
      if (bytes > total_bytes_ - held) return false;
    } while (!held_bytes_.compare_exchange_weak(held, held + bytes));
    return true;
  }
  void give_back(int64_t bytes) {
    held_bytes_.fetch_sub(bytes);
    if (bytes >= kLargeBytes && on_large_end_) on_large_end_();
  }

  // Whether `bytes` more would fit now: to refuse a body that says its size before it is sent.
  bool has_room(uint64_t bytes) const { return bytes <= static_cast<uint64_t>(total_bytes_ - held_bytes_.load()); }
  int64_t held_bytes() const { return held_bytes_.load(); }
  int64_t total_bytes() const { return total_bytes_; }

 private:
  const int64_t total_bytes_;
  const std::function<void()> on_large_end_;
  std::atomic<int64_t> held_bytes_{0};
};

// Why a body has to wait for others to be done with.
inline Status too_many_bodies() {
  return Status(StatusCode::kResourceExhausted,
                "other requests' bodies take all of --max-total-body-bytes; try again later");
}

// What one body takes of the budget; given back when the last holder of the body lets go of it.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->give_back(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // One thread at a time. kResourceExhausted: others leave no room for `bytes`; kTooLarge: they would not fit alone.
  Status grow_to(int64_t bytes) {
    if (bytes <= bytes_) return Status();
    if (bytes > budget_->total_bytes()) {
      return Status(StatusCode::kTooLarge, "the body takes more memory, parsed, than --max-total-body-bytes (" +
                                               std::to_string(budget_->total_bytes()) + ")");
    }
    if (!budget_->take(bytes - bytes_)) return too_many_bodies();
    bytes_ = bytes;
    return Status();
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  int64_t bytes_ = 0;
};

}  // namespace tailrace
