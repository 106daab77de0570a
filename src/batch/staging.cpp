#include "batch/staging.h"

#include <algorithm>

#include "base/check.h"
#include "base/test_fault.h"

namespace tailrace {

size_t Staging::pinned_bytes(size_t slab_capacity, int32_t max_rows) {
  return kStagingRing * (slab_capacity + sizeof(SampledRow) * max_rows);
}

Expected<std::unique_ptr<Staging>> Staging::create(Device& device, size_t slab_capacity, int32_t max_rows,
                                                   StagingMode mode) {
  auto staging = std::make_unique<Staging>();
  staging->mode_ = mode;
  staging->capacity_ = slab_capacity;
  staging->max_rows_ = max_rows;
  for (Slot& slot : staging->slots_) {
    if (mode == StagingMode::kBlocking) slot.pageable = std::make_unique<std::byte[]>(slab_capacity);
    slot.host = slot.pageable ? slot.pageable.get() : static_cast<std::byte*>(device.alloc_pinned(slab_capacity));
    slot.twin = static_cast<std::byte*>(device.alloc_device(slab_capacity));
    if (!slot.host || !slot.twin) return fail(StatusCode::kResourceExhausted, "no memory for the staging slabs");
  }
  staging->sampled_ = static_cast<SampledRow*>(device.alloc_pinned(kStagingRing * sizeof(SampledRow) * max_rows));
  if (!staging->sampled_) return fail(StatusCode::kResourceExhausted, "no memory for the sampled ids");
  return staging;
}

void Staging::stage(const StepPlan& plan, uint64_t launch, Stream& engine_stream, Stream& copy_stream) {
  // The fault keeps one pinned slab for all steps and never waits.
  const bool early = test_fault(Fault::kSlabReuseEarly);
  Slot& slot = slots_[early ? 0 : launch % kStagingRing];
  if (slot.copied && !early) slot.copied->wait("staging");  // four launches old: over by construction, counted if not
  const size_t bytes = write_slab(plan, launch, slot.host, capacity_);
  std::byte* twin = slots_[launch % kStagingRing].twin;
  if (mode_ != StagingMode::kDevice) return copy_in_line(slot, twin, bytes, engine_stream);
  if (slot.forward_done && !early) copy_stream.wait_for(slot.forward_done);
  copy_stream.copy(twin, slot.host, bytes);
  slot.copied = copy_stream.record();
  engine_stream.wait_for(slot.copied);
}

// Three parts stand for the three arrays of an attention backend's metadata: copies cost by their number, not their bytes.
void Staging::copy_in_line(Slot& slot, std::byte* twin, size_t bytes, Stream& engine_stream) {
  const size_t parts = mode_ == StagingMode::kPacked ? 1 : 3, part = (bytes + parts - 1) / parts;
  for (size_t at = 0; at < bytes; at += part) {
    const size_t count = std::min(part, bytes - at);
    if (mode_ == StagingMode::kBlocking) {
      engine_stream.copy_blocking(twin + at, slot.host + at, count, "staging");
    } else {
      engine_stream.copy(twin + at, slot.host + at, count);
    }
  }
  if (mode_ != StagingMode::kBlocking) slot.copied = engine_stream.record();
}

void Staging::set_forward_done(uint64_t launch, std::shared_ptr<Event> event) {
  slots_[launch % kStagingRing].forward_done = std::move(event);
}

const BatchRow* Staging::host_rows(uint64_t launch) const {
  return reinterpret_cast<const BatchRow*>(slots_[launch % kStagingRing].host + slab_rows_offset());
}

}  // namespace tailrace
