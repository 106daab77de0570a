#include "batch/staging.h"

#include "base/check.h"
#include "base/test_fault.h"

namespace tailrace {

size_t Staging::pinned_bytes(size_t slab_capacity, int32_t max_rows) {
  return kStagingRing * (slab_capacity + sizeof(SampledRow) * max_rows);
}

Expected<std::unique_ptr<Staging>> Staging::create(Device& device, size_t slab_capacity, int32_t max_rows) {
  auto staging = std::make_unique<Staging>();
  staging->capacity_ = slab_capacity;
  staging->max_rows_ = max_rows;
  for (Slot& slot : staging->slots_) {
    slot.pinned = static_cast<std::byte*>(device.alloc_pinned(slab_capacity));
    slot.twin = static_cast<std::byte*>(device.alloc_device(slab_capacity));
    if (!slot.pinned || !slot.twin) return fail(StatusCode::kResourceExhausted, "no memory for the staging slabs");
  }
  staging->sampled_ = static_cast<SampledRow*>(device.alloc_pinned(kStagingRing * sizeof(SampledRow) * max_rows));
  if (!staging->sampled_) return fail(StatusCode::kResourceExhausted, "no memory for the sampled ids");
  return staging;
}

std::shared_ptr<Event> Staging::stage(const StepPlan& plan, uint64_t launch, Stream& copy_stream) {
  // The fault keeps one pinned slab for all steps and never waits.
  const bool early = test_fault(Fault::kSlabReuseEarly);
  Slot& slot = slots_[early ? 0 : launch % kStagingRing];
  if (slot.copied && !early) slot.copied->wait("staging");  // four launches old: over by construction, counted if not
  const size_t bytes = write_slab(plan, launch, slot.pinned, capacity_);
  if (slot.forward_done && !early) copy_stream.wait_for(slot.forward_done);
  copy_stream.copy(slots_[launch % kStagingRing].twin, slot.pinned, bytes);
  slot.copied = copy_stream.record();
  return slot.copied;
}

void Staging::set_forward_done(uint64_t launch, std::shared_ptr<Event> event) {
  slots_[launch % kStagingRing].forward_done = std::move(event);
}

const BatchRow* Staging::host_rows(uint64_t launch) const {
  return reinterpret_cast<const BatchRow*>(slots_[launch % kStagingRing].pinned + slab_rows_offset());
}

}  // namespace tailrace
