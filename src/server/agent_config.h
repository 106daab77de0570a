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

// What agents look at to find their file.
struct AgentPlaces {
  std::function<std::string(const char*)> variable;       // of the environment; "" for none
  std::function<bool(const std::string& path)> exists;
};

// The agent's own file of the user. `profile` is Codex's ("": none), whose file lies over the other.
// opencode reads opencode.json, opencode.jsonc over it, and the file that OPENCODE_CONFIG names over
// both: the last that there is. kInvalidArgument without a HOME.
Expected<std::string> agent_config_path(AgentKind agent, const std::string& profile, const AgentPlaces& places);

// `existing` (the file's text, "" for none) with what points the agent at `target`; every other byte
// stays. kInvalidArgument: what cannot be read, or has another shape.
Expected<std::string> point_agent(AgentKind agent, const AgentTarget& target,
                                  std::string_view existing);

}  // namespace tailrace
