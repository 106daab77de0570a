// StepLog: the last steps as they went, host and device times side by side; for tools. Bounded; one writer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/step_trace.h"

namespace tailrace {

// Times in ns on the host's clock; begun and done are the device's, placed on it.
struct StepRecord {
  uint64_t step = 0;
  int32_t num_rows = 0, num_decode_rows = 0, num_tokens = 0;
  bool has_slab = true;                                 // false: nothing was sent to the device
  int64_t plan_ns = 0, launch_ns = 0, launched_ns = 0;  // planning begins, launching begins, all is queued
  int64_t result_ns = 0, processed_ns = 0;              // the step's result was there; all of it was handed on
  int64_t begun_ns = 0, done_ns = 0;
  IdleGap gap;  // of the device, before the step
};

class StepLog {
 public:
  // Keeps the last `capacity` steps; memory is claimed here.
  explicit StepLog(size_t capacity) : ring_(capacity) {}

  void add(const StepRecord& record) { ring_[total_++ % ring_.size()] = record; }
  // Oldest first. Not while the engine runs steps.
  std::vector<StepRecord> records() const {
    std::vector<StepRecord> out;
    for (uint64_t i = total_ - std::min<uint64_t>(total_, ring_.size()); i < total_; ++i)
      out.push_back(ring_[i % ring_.size()]);
    return out;
  }
  uint64_t total() const { return total_; }  // steps seen, kept or not
  void clear() { total_ = 0; }

 private:
  std::vector<StepRecord> ring_;
  uint64_t total_ = 0;
};

}  // namespace tailrace
