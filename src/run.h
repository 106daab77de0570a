// The sub-commands of the tailrace binary. Each returns the process's exit code.
#pragma once

#include "engine/engine_host.h"
#include "server/config.h"

namespace tailrace {

inline constexpr int kExitBadInput = 2;  // the command line, the environment or a file
inline constexpr int kExitEngineDied = 1;

int run_serve(const ServeConfig& config);
int run_inspect(const InspectConfig& config);
int run_launch(const LaunchConfig& config);

// Names the fault in one line on stderr; the exit code for it.
int bad_input(const Status& status);

// Architecture, formats, ledger, blocks: what `inspect` prints and `serve` reports at start.
void print_model_report(const ModelReport& report);

}  // namespace tailrace
