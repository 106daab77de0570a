// SlabWriter: packs a StepPlan into a slab. Pure host code.
#pragma once

#include <cstddef>

#include "batch/slab.h"
#include "scheduler/step_plan.h"

namespace tailrace {

// The most bytes that a slab can take under the scheduler's bounds: a ledger line (times the ring's length, twice).
// max_patch_blocks: block-table entries of one group that one step may change.
struct SlabLimits {
  int32_t max_rows = 0;
  int32_t num_groups = 1;
  int64_t max_log_patch_tokens = 0;
  int64_t max_patch_blocks = 0;
};
size_t slab_capacity(const SlabLimits& limits);

// Byte offset of the BatchRow array in every slab.
size_t slab_rows_offset();

// Writes `plan` to `slab` for `launch`; CHECKs that it fits. Returns the bytes in use.
size_t write_slab(const StepPlan& plan, uint64_t launch, std::byte* slab, size_t capacity);

}  // namespace tailrace
