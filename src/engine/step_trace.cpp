#include "engine/step_trace.h"

namespace tailrace {

IdleGap StepTrace::add(const StepTimes& step) {
  IdleGap gap;
  if (last_done_ns_ != 0 && step.begun_ns > last_done_ns_) {
    gap.ns = step.begun_ns - last_done_ns_;
    if (!step.had_work) {
      gap.cause = IdleCause::kNoWork;
    } else if (step.waited_for_result) {
      gap.cause = IdleCause::kResultWait;
    } else if (step.launched_ns > last_done_ns_) {
      gap.cause = IdleCause::kHostLate;
    } else {
      gap.cause = step.has_slab ? IdleCause::kMetadata : IdleCause::kLaunch;
    }
  }
  last_done_ns_ = step.done_ns;
  return gap;
}

}  // namespace tailrace
