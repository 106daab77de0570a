// Staging: the ring of pinned slabs and their device twins, and the ring of sampled results.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "batch/slab.h"
#include "batch/slab_writer.h"
#include "device/device.h"

namespace tailrace {

class Staging {
 public:
  // Claims the rings; kResourceExhausted when the device has no room.
  static Expected<std::unique_ptr<Staging>> create(Device& device, size_t slab_capacity, int32_t max_rows);
  static size_t pinned_bytes(size_t slab_capacity, int32_t max_rows);
  static size_t device_bytes(size_t slab_capacity) { return kStagingRing * slab_capacity; }

  // Packs `plan` into the pinned slab of `launch` and queues one copy to its device twin on `copy_stream`. Returns the event
  // that is set when the copy has ended. A slab is refilled only when its last copy has ended (hazard 2), and a twin is
  // overwritten only after `forward_done` of the launch that read it, by a wait on the device.
  std::shared_ptr<Event> stage(const StepPlan& plan, uint64_t launch, Stream& copy_stream);
  // The step of `launch` may read its twin until `event`.
  void set_forward_done(uint64_t launch, std::shared_ptr<Event> event);

  const std::byte* twin(uint64_t launch) const { return slots_[launch % kStagingRing].twin; }
  // Rows of the slab of `launch` in host memory, in the order of its plan.
  const BatchRow* host_rows(uint64_t launch) const;
  SampledRow* sampled(uint64_t launch) const { return sampled_ + (launch % kStagingRing) * max_rows_; }

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
