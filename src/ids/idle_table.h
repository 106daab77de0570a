// The host block's price: the device's idle time between two steps for every way of staging, in one run.
#pragma once

#include <vector>

#include "base/step_log.h"
#include "ids/ids_options.h"

namespace tailrace {

// Idle time in front of a kind of step, us.
struct GapSummary {
  size_t count = 0;
  double p50_us = 0, p99_us = 0;
};

// Gaps in front of decode steps of `rows` rows that follow such a step (mixed: in front of mixed steps that follow a
// step with decode rows). The first of them, and gaps in which there was no work, do not count.
GapSummary decode_gaps(const std::vector<StepRecord>& steps, int32_t rows);
GapSummary mixed_gaps(const std::vector<StepRecord>& steps);

// For every staging mode an engine of its own: decode steps of 1, 8 and 64 rows, then 8 rows beside arriving prompts.
// Prints a table; on a GPU false when a must is missed (medians; device: 4 us before a decode step, 10 us before a mixed
// one; blocking: five times device). Elsewhere times are printed, not judged.
Expected<bool> run_idle_table(const IdsOptions& options);

}  // namespace tailrace
