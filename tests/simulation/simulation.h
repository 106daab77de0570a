// A seeded random run: configuration, workload and timing all come from the seed.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/scheduler.h"

namespace tailrace {

struct SimulationReport {
  std::string violation;  // "" if none
  std::string config;     // for the failure message
  uint64_t trace = 0;
  uint64_t steps = 0, requests = 0, preemptions = 0, cached_tokens = 0, cancels = 0,
           mixed_steps = 0, early_ends = 0, checkpoints = 0, checkpoint_starts = 0, late_masks = 0;
};

// recurrent: of a model with recurrent layers, whose states have checkpoints.
SchedulerConfig simulation_config(uint64_t seed, bool recurrent = false);
SimulationReport simulate(uint64_t seed, bool recurrent = false);

}  // namespace tailrace
