// Contracts 1 and 2 on a running engine: in steady state nothing waits for the device, allocates or loads, by the
// engine's own counters and, on a GPU, by what the driver is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/call_watch.h"
#include "ids/ids_options.h"

namespace tailrace {

// What a phase of the run did.
struct PhaseCounts {
  uint64_t steps = 0, mixed_steps = 0, slabs = 0;
  uint64_t host_blocks = 0, allocations = 0;
  int64_t claimed_bytes = 0;      // device and pinned
  bool watched = false;           // `calls` were counted
  std::vector<DriverCall> calls;  // of the engine thread into the driver
};

struct PhaseRules {
  bool arrivals = false;  // false: no mixed step may have come in between, and one step in 32 may send a slab
};

// "" when the phase kept the contracts, else what broke them, each with its figures.
std::string contract_breach(const PhaseCounts& counts, const PhaseRules& rules);

// Two phases on one engine: `prompts` rows decode for `contract_steps` steps; then they decode while others arrive, are
// prefilled in mixed steps and end. Prints a table; false when a contract is broken. Errors: the model's context cannot
// hold that many steps, or the driver's calls cannot be watched.
Expected<bool> run_contracts(const IdsOptions& options);

}  // namespace tailrace
