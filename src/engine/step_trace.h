// StepTrace: device idle time between two steps, measured on the device and split by cause (contract 6).
#pragma once

#include <cstdint>

#include "base/step_log.h"

namespace tailrace {

// Times on the device's clock, except launched_ns (host; the CPU device shares the clock, a GPU's is aligned at boot).
struct StepTimes {
  int64_t launched_ns = 0;
  int64_t begun_ns = 0;
  int64_t done_ns = 0;
  bool had_work = true;         // work existed when the previous step ended
  bool waited_for_result = false;
  bool has_slab = true;         // metadata was sent for it
};

class StepTrace {
 public:
  // The gap before `step`, given the steps in order; zero for the first.
  IdleGap add(const StepTimes& step);

 private:
  int64_t last_done_ns_ = 0;
};

}  // namespace tailrace
