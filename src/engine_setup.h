// Translates the command line into what the engine is built from; every derived default is decided here.
#pragma once

#include "engine/engine_host.h"
#include "server/config.h"

namespace tailrace {

EngineSetup engine_setup(const ServeConfig& config);

}  // namespace tailrace
