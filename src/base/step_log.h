// StepLog: the last steps as they went, host and device times side by side. Bounded; one writer, readers at any time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace tailrace {

// Why the device had nothing to do between two steps (contract 6).
enum class IdleCause {
  kNoWork,      // nothing was waiting or running
  kResultWait,  // the next step could not be planned before the last one's results
  kHostLate,    // the next step was launched after the device had run dry
  kMetadata,    // launched in time with a slab, which may have arrived late
  kLaunch,      // launched in time and nothing had to arrive: the device's own time between two launches
};

inline constexpr int kNumIdleCauses = 5;
inline const char* idle_cause_name(IdleCause cause) {
  static constexpr const char* kNames[kNumIdleCauses] = {"no_work", "result_wait", "host_late", "metadata", "launch"};
  return kNames[static_cast<int>(cause)];
}

struct IdleGap {
  int64_t ns = 0;
  IdleCause cause = IdleCause::kNoWork;
};

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
  explicit StepLog(size_t capacity) : slots_(new Slot[capacity]), capacity_(capacity) {}

  // One thread; some twenty plain stores, whoever reads.
  void add(const StepRecord& record) {
    const uint64_t index = total_.load(std::memory_order_relaxed);
    Slot& slot = slots_[index % capacity_];
    Words words{};
    std::memcpy(words.data(), &record, sizeof record);
    slot.version.store(2 * index + 1, std::memory_order_release);
    for (size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], std::memory_order_release);
    slot.version.store(2 * index + 2, std::memory_order_release);
    total_.store(index + 1, std::memory_order_release);
  }

  struct Part {
    std::vector<StepRecord> steps;  // oldest first
    uint64_t next = 0;              // where the next part begins
  };
  // Those kept of the steps from the `since`th on (counted from 0); of more than `limit` the newest. While steps are added
  // the oldest may be missing.
  Part part(uint64_t since, size_t limit = SIZE_MAX) const {
    Part out{.steps = {}, .next = total()};
    for (uint64_t i = std::max(since, out.next - std::min<uint64_t>({out.next, capacity_, limit})); i < out.next; ++i) {
      StepRecord record;
      if (read(i, record)) out.steps.push_back(record);
    }
    return out;
  }
  std::vector<StepRecord> records() const { return part(0).steps; }

  uint64_t total() const { return total_.load(std::memory_order_acquire); }  // steps seen, kept or not
  // Only while no step is added.
  void clear() { total_ = 0; }

 private:
  static_assert(std::is_trivially_copyable_v<StepRecord>);
  using Words = std::array<uint64_t, (sizeof(StepRecord) + 7) / 8>;

  // A seqlock without fences: a reader that sees one word of a later step sees its odd version too.
  struct Slot {
    std::atomic<uint64_t> version{0};  // 2 x index + 2: holds that step; odd: is being written
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
  };

  bool read(uint64_t index, StepRecord& out) const {
    const Slot& slot = slots_[index % capacity_];
    if (slot.version.load(std::memory_order_acquire) != 2 * index + 2) return false;
    Words words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.version.load(std::memory_order_relaxed) != 2 * index + 2) return false;
    std::memcpy(static_cast<void*>(&out), words.data(), sizeof out);
    return true;
  }

  const std::unique_ptr<Slot[]> slots_;
  const size_t capacity_;
  std::atomic<uint64_t> total_{0};
};

// Chrome trace JSON (Perfetto reads it): host lanes plan, launch and process; device lanes of steps with rows and tokens
// and of the idle time before each, named by its cause. Times in us from the first step's planning.
std::string trace_json(const std::vector<StepRecord>& steps);

}  // namespace tailrace
