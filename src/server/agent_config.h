// What a coding agent's configuration file has to hold so that the agent talks to this server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/config.h"

namespace tailrace {

// The server, as agents are told of it.
struct AgentTarget {
  std::string base_url;  // http://host:port
  std::string model;
  std::string api_key;         // "": the server asks for none
  int32_t context_length = 0;  // 0: not known
};

// The agent's own file of the user, by the environment that the agent looks into. kInvalidArgument
// without a HOME.
Expected<std::string> agent_config_path(AgentKind agent,
                                        const std::function<std::string(const char*)>& variable);

// `existing` (the file's text, "" for none) with what points the agent at `target` and nothing else
// changed: Codex's TOML keeps its text, JSON its members and their order. kInvalidArgument: what
// cannot be read, or has another shape.
Expected<std::string> point_agent(AgentKind agent, const AgentTarget& target,
                                  std::string_view existing);

// Replaces the file (following a link to it) at once and whole, keeping its permissions; a copy of
// what was there stays beside it, FILE.bak or FILE.bak2 ... Returns the copy's path, "" where there
// was nothing. kInvalidArgument.
Expected<std::string> replace_file(const std::string& path, std::string_view text);

}  // namespace tailrace
