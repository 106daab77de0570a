#include <algorithm>

#include "base/test_fault.h"
#include "kernels/backend.h"

namespace tailrace {

StepEvents HostBackend::run_step(Stream& stream, const StepLaunch& step) {
  const int place = static_cast<int>(step.launch % kStagingRing);
  Batch batch = binding_.batch;
  batch.num_rows = step.num_rows;
  batch.num_decode_rows = step.num_decode_rows;
  batch.num_tokens = step.num_tokens;
  batch.rows = binding_.targets.rows;
  batch.sampled = binding_.sampled + int64_t{place} * binding_.max_rows;
  if (step.has_slab) {
    stream.run([slab = binding_.slabs[place], targets = binding_.targets] { apply_slab(slab, targets); });
  } else {
    stream.run([rows = binding_.targets.rows, n = step.num_rows] { advance_rows(rows, n); });
  }
  stream.run([batch, rows = binding_.targets.rows] {
    if (!test_fault(Fault::kIgnoreStopFlags)) idle_stopped_rows(rows, batch.num_decode_rows, batch.state);
    for (int32_t r = 0; r < batch.num_rows; ++r) {
      if (idle(rows[r])) batch.sampled[r].id = kNoToken;
    }
  });
  StepEvents events{.begun = stream.record(), .done = nullptr};
  forward(stream, batch);
  events.done = stream.record();
  return events;
}

ExpertCounts HostBackend::expert_counts(int32_t rows) const {
  return rows >= 0 && static_cast<size_t>(rows) < counts_.size() ? counts_[static_cast<size_t>(rows)] : ExpertCounts{};
}

ExpertCounts* HostBackend::expert_counter(const Batch& batch) {
  if (counts_.empty() || batch.num_rows != batch.num_decode_rows) return nullptr;
  const BatchRow *begin = batch.rows, *end = begin + batch.num_rows;
  if (std::any_of(begin, end, [](const BatchRow& row) { return idle(row); })) return nullptr;
  return &counts_[static_cast<size_t>(batch.num_rows)];
}

}  // namespace tailrace
