// Translates the command line into what the engine is built from; every derived default is decided here.
#pragma once

#include <memory>

#include "engine/engine_host.h"
#include "server/config.h"
#include "text/text_model.h"

namespace tailrace {

// The tokenizer and chat template to serve with; errors as TextModel::load's. A template that refuses a plain chat is
// warned of on stderr.
Expected<std::shared_ptr<const TextModel>> load_text(const ServeConfig& config);

EngineSetup engine_setup(const ServeConfig& config, const TextModel& text);

}  // namespace tailrace
