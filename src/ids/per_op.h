// Where a decode step's time goes, op by op: what `tailrace bench decode --per-op` prints.
#pragma once

#include <string>
#include <vector>

#include "device/kernel_trace.h"
#include "engine/step_ops.h"

namespace tailrace {

struct OpTime {
  std::string label;   // a StepOp's, or the name of a kernel that is part of none
  double count = 0;    // kernels of a step
  double us = 0;       // of a step: what it took longer than the kernels that began before it
  double gap_us = 0;   // of that, until it began, while nothing ran
  double bytes = 0;    // of a step
};

struct PerOp {
  int steps = 0;             // that were looked at
  double step_us = 0;        // mean, begin of the first kernel to the next step's
  std::vector<OpTime> ops;   // in the order of a step
  bool matched = false;      // whether each op had its kernel; where not, kernels stand under their names
};

// Of the captured graph that most of `runs` are of: every launch of it but the first and the last. No steps where there are fewer
// than three.
PerOp per_op(std::vector<KernelRun> runs, std::vector<StepOp> ops);

// A table: us, gaps, bytes, GB/s and, where `ceiling_gbs` is known, its share.
void print_per_op(const PerOp& per_op, double ceiling_gbs);

}  // namespace tailrace
