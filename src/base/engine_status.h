// EngineStatus: what the engine says about itself while it runs. The engine thread writes, server threads read; every
// field is an atomic of its own, so a reader may see fields of two neighbouring steps.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/clock.h"
#include "base/limits.h"

namespace tailrace {

enum class EngineState : uint32_t {
  kLoading,   // weights are read, kernels tuned: no request is admitted
  kReady,
  kDead,      // the loop ended or failed; every open request got its finish event
};

// Counters whose label values are few and known to the writer only. Lock-free; at most kSlots distinct names, each a
// string literal (or otherwise immortal); further names are counted under "other".
class LabelledCounters {
 public:
  static constexpr int kSlots = 16;

  void add(const char* name, uint64_t amount = 1) {
    for (int i = 0; i < kSlots - 1; ++i) {
      const char* seen = slots_[i].name.load(std::memory_order_acquire);
      if (seen == nullptr && slots_[i].name.compare_exchange_strong(seen, name)) seen = name;
      if (seen == name || std::strcmp(seen, name) == 0) {
        slots_[i].count.fetch_add(amount, std::memory_order_relaxed);
        return;
      }
    }
    slots_[kSlots - 1].name.store("other", std::memory_order_release);
    slots_[kSlots - 1].count.fetch_add(amount, std::memory_order_relaxed);
  }

  template <typename Visitor>  // visitor(const char* name, uint64_t count)
  void for_each(Visitor visitor) const {
    for (const Slot& slot : slots_) {
      const char* name = slot.name.load(std::memory_order_acquire);
      if (name != nullptr) visitor(name, slot.count.load(std::memory_order_relaxed));
    }
  }

  uint64_t total() const {
    uint64_t sum = 0;
    for_each([&](const char*, uint64_t count) { sum += count; });
    return sum;
  }

 private:
  struct Slot {
    std::atomic<const char*> name{nullptr};
    std::atomic<uint64_t> count{0};
  };
  std::array<Slot, kSlots> slots_;
};

// What dropping the cached prefixes did (POST /flush_cache).
struct FlushedCache {
  int64_t blocks = 0;    // that are free now, of all KV groups
  int32_t running = 0;   // requests that run on: the prefixes they use stay
};

// One KV layer group's pool, in blocks (kv_index.h: free + cached + owned = total).
struct KvGroupStatus {
  std::atomic<int32_t> window{0};   // 0: full attention
  std::atomic<int64_t> total{0}, free{0}, cached{0}, owned{0};
};

struct EngineStatus {
  std::atomic<EngineState> state{EngineState::kLoading};

  // Liveness. heartbeat_ns (now_ns) is written once per turn of the loop; `idle` is true while the engine has nothing to
  // do and waits on the request queue: an idle engine needs no heartbeat.
  std::atomic<int64_t> heartbeat_ns{0};
  std::atomic<bool> idle{true};
  void beat() { heartbeat_ns.store(now_ns(), std::memory_order_relaxed); }

  // Progress of loading, bytes; 0 of 0 when unknown.
  std::atomic<int64_t> load_done_bytes{0}, load_total_bytes{0};

  // Gauges.
  std::atomic<int32_t> running{0}, waiting{0}, inflight_steps{0};
  std::atomic<int32_t> num_kv_groups{0};            // set once, before kReady
  std::array<KvGroupStatus, kMaxKvGroups> kv;
  KvGroupStatus checkpoints;                        // of recurrent states; total 0 where a model has none
  std::atomic<int64_t> device_bytes{0}, pinned_bytes{0};

  // Counters since start; never decrease.
  std::atomic<uint64_t> prompt_tokens{0};           // of admitted requests
  std::atomic<uint64_t> cached_tokens{0};           // prompt tokens served from the prefix cache
  std::atomic<uint64_t> computed_tokens{0};         // tokens that went through forward
  std::atomic<uint64_t> generated_tokens{0};
  std::atomic<uint64_t> preemptions{0};
  std::atomic<uint64_t> decode_steps{0}, extend_steps{0}, mixed_steps{0};

  // Grammars: masks computed and the threads' time for them; constrained rows whose mask came after their step.
  std::atomic<uint64_t> masks{0}, mask_us{0}, late_masks{0};

  // Contracts 1-3. The first two stay 0, the third without --mixed fold; the fourth counts what a cost model that was too hopeful,
  // or a busy machine, made longer than planned.
  LabelledCounters host_block;                      // tailrace_host_block_total{site}
  std::atomic<uint64_t> device_alloc_after_ready{0};
  LabelledCounters mixed_fallback;                  // tailrace_mixed_fallback_total{reason}
  std::atomic<uint64_t> mixed_over_budget{0};       // mixed steps that lasted longer than the bound of contract 3
  std::atomic<uint64_t> launches{0}, slab_copies{0};    // steps, and those that needed a copy to the device
  std::atomic<uint64_t> spared_rows{0};             // ended by a stop id when their next step was queued: no work was done
  std::atomic<uint64_t> mixed_floor_steps{0};       // those whose smallest chunk alone exceeds it: every second at most

  // Contract 6: device idle time between steps by cause, microseconds.
  std::atomic<uint64_t> idle_host_late_us{0}, idle_metadata_us{0}, idle_no_work_us{0}, idle_result_wait_us{0},
      idle_launch_us{0};
};

}  // namespace tailrace
