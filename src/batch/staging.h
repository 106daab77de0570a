// Staging: the ring of pinned slabs and their device twins, and the ring of sampled results.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "batch/slab_writer.h"
#include "device/device.h"

namespace tailrace {

// Steps whose slab or result may be alive at once: one running, one queued, one being built, and one to spare.
inline constexpr int kStagingRing = 4;

class Staging {
 public:
  // Claims the rings; kResourceExhausted when the device has no room.
  static Expected<std::unique_ptr<Staging>> create(Device& device, size_t slab_capacity, int32_t max_rows);
  static size_t pinned_bytes(size_t slab_capacity, int32_t max_rows);
  static size_t device_bytes(size_t slab_capacity) { return kStagingRing * slab_capacity; }

  // Packs `plan` into the pinned slab of its step and queues one copy to the device twin on `copy_stream`. Returns the twin;
  // *copied is set when the copy has ended. A slab is refilled only when its last copy has ended (hazard 2), and a twin is
  // overwritten only after `forward_done` of the step that used it, by a wait on the device.
  const std::byte* stage(const StepPlan& plan, Stream& copy_stream, std::shared_ptr<Event>* copied);
  // The forward of `step` reads its twin until `event`.
  void set_forward_done(uint64_t step, std::shared_ptr<Event> event);

  SampledRow* sampled(uint64_t step) { return sampled_ + (step % kStagingRing) * max_rows_; }

 private:
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* twin = nullptr;
    std::shared_ptr<Event> copied, forward_done;  // fresh events per step, never re-recorded
  };
  std::array<Slot, kStagingRing> slots_;
  SampledRow* sampled_ = nullptr;
  size_t capacity_ = 0;
  int32_t max_rows_ = 0;
};

}  // namespace tailrace
