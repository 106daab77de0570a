// What GET /server_info says of a server once its model is loaded: settings, memory, kernels, fast paths.
#pragma once

#include "engine/engine_host.h"
#include "server/config.h"
#include "server/json.h"
#include "server/served_model.h"

namespace tailrace {

// {"model", "device", "config", "memory", "kernels", "notes", "fast_paths"}. Secrets are left out: keys are counted. Where the
// command line left something open, `config` holds what it came to.
Json server_info(const ServeConfig& config, const EngineSetup& setup, const EngineHost& host, const ServedModel& model);

}  // namespace tailrace
