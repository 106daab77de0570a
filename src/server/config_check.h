// Checks of the command line that need more than a range: combinations, model paths, foreign flags, the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/config.h"

namespace tailrace {

// Refuses every TAILRACE_* variable in `environment` (name=value strings): there is one way to configure, the flags.
Status check_environment(const std::vector<std::string>& environment);

// For a flag of vLLM or SGLang that has another name here, or does not exist here: says so. Ok for anything else.
Status explain_foreign_flag(const std::string& arg);

// The error for a flag that nobody knows, with the nearest of `known` when one is near.
Status unknown_flag(const std::string& arg, const std::vector<std::string>& known, const std::string& command);

// Combinations that cannot work on any machine, and the model's path.
Status check_serve_config(const ServeConfig& config);

// Settles engine.device as kCpu or kCuda, and refuses what the settled device cannot do.
Status settle_device(EngineOptions& engine, const BuildFacts& facts);

// Refuses addresses, keys, models and profiles that no agent's file could hold or no agent could use; the address comes
// out in its shortest form.
Status settle_launch(LaunchConfig& config);

// Exists, or is a hub id (gets the command that downloads it), or is neither.
Status check_model_path(const std::string& path);

// "auto" -> 0, or 1..256.
Status parse_kv_splits(const std::string& text, int32_t& out);

std::string default_served_name(const std::string& path);
std::string one_line(std::string text);

}  // namespace tailrace
