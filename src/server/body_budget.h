// The memory that request bodies may take, all connections together.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tailrace {

class BodyBudget {
 public:
  explicit BodyBudget(int64_t total_bytes) : total_bytes_(total_bytes) {}

  // Thread-safe. False, and nothing is taken, when `bytes` more would exceed the total.
  bool take(int64_t bytes) {
    int64_t held = held_bytes_.load();
    do {
      if (bytes > total_bytes_ - held) return false;
    } while (!held_bytes_.compare_exchange_weak(held, held + bytes));
    return true;
  }
  void give_back(int64_t bytes) { held_bytes_.fetch_sub(bytes); }

  // Whether `bytes` more would fit now: to refuse a body that says its size before it is sent.
  bool has_room(uint64_t bytes) const { return bytes <= static_cast<uint64_t>(total_bytes_ - held_bytes_.load()); }
  int64_t held_bytes() const { return held_bytes_.load(); }

 private:
  const int64_t total_bytes_;
  std::atomic<int64_t> held_bytes_{0};
};

// What one body takes of the budget; given back when the last holder of the body lets go of it.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->give_back(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // False when the budget does not allow for a body of `bytes`.
  bool grow_to(int64_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_->take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  int64_t bytes_ = 0;
};

}  // namespace tailrace
