// StepTrace: device idle time between two steps, measured on the device and split by cause (contract 6).
#pragma once

#include <cstdint>

namespace tailrace {

enum class IdleCause {
  kNoWork,      // nothing was waiting or running
  kResultWait,  // the next step could not be planned before the last one's results
  kHostLate,    // the next step was launched after the device had run dry
  kMetadata,    // launched in time with a slab, which may have arrived late
  kLaunch,      // launched in time and nothing had to arrive: the device's own time between two launches
};

inline constexpr int kNumIdleCauses = 5;
inline const char* idle_cause_name(IdleCause cause) {
  static constexpr const char* kNames[kNumIdleCauses] = {"no_work", "result_wait", "host_late", "metadata", "launch"};
  return kNames[static_cast<int>(cause)];
}

struct IdleGap {
  int64_t ns = 0;
  IdleCause cause = IdleCause::kNoWork;
};

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
