// Staging: the ring of pinned slabs and their device twins, and the ring of sampled results.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "batch/slab.h"
#include "batch/slab_writer.h"
#include "device/device.h"

namespace tailrace {

// How what a step needs to know reaches the device. All but kDevice exist to be compared with it (--debug-staging).
enum class StagingMode {
  kDevice,    // rows advance on the device; what changes goes in one slab, on the copy stream, during the step before
  kPacked,    // every step has a slab, copied on the engine stream in front of it
  kPinned,    // the same in three copies
  kBlocking,  // the same three from pageable memory, the host waiting for each: a host block a copy
};

class Staging {
 public:
  // Claims the rings; kResourceExhausted when the device has no room.
  static Expected<std::unique_ptr<Staging>> create(Device& device, size_t slab_capacity, int32_t max_rows,
                                                   StagingMode mode = StagingMode::kDevice);
  static size_t pinned_bytes(size_t slab_capacity, int32_t max_rows);
  static size_t device_bytes(size_t slab_capacity) { return kStagingRing * slab_capacity; }

  // Packs `plan` into the pinned slab of `launch` and queues one copy to its device twin on `copy_stream`; what is
  // queued on `engine_stream` afterwards waits for it. A slab is refilled only when its last copy has ended (hazard 2),
  // and a twin is overwritten only after `forward_done` of the launch that read it, by a wait on the device. Other modes
  // copy on `engine_stream`, which orders both.
  void stage(const StepPlan& plan, uint64_t launch, Stream& engine_stream, Stream& copy_stream);
  // Whether a step that only moves its rows one token on goes without a slab.
  bool spares_slabs() const { return mode_ == StagingMode::kDevice; }
  // The step of `launch` may read its twin until `event`.
  void set_forward_done(uint64_t launch, std::shared_ptr<Event> event);

  const std::byte* twin(uint64_t launch) const { return slots_[launch % kStagingRing].twin; }
  // Rows of the slab of `launch` in host memory, in the order of its plan.
  const BatchRow* host_rows(uint64_t launch) const;
  SampledRow* sampled(uint64_t launch) const { return sampled_ + (launch % kStagingRing) * max_rows_; }

 private:
  struct Slot {
    std::byte* host = nullptr;  // pinned, or `pageable`
    std::byte* twin = nullptr;
    std::unique_ptr<std::byte[]> pageable;        // kBlocking only
    std::shared_ptr<Event> copied, forward_done;  // fresh events per step, never re-recorded
  };
  void copy_in_line(Slot& slot, std::byte* twin, size_t bytes, Stream& engine_stream);

  StagingMode mode_ = StagingMode::kDevice;
  std::array<Slot, kStagingRing> slots_;
  SampledRow* sampled_ = nullptr;
  size_t capacity_ = 0;
  int32_t max_rows_ = 0;
};

}  // namespace tailrace
