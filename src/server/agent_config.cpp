#include "server/agent_config.h"

#include <algorithm>
#include <utility>

#include "server/json_edit.h"
#include "server/toml_edit.h"

namespace tailrace {
namespace {

constexpr const char* kProvider = "tailrace";
constexpr int32_t kMostOpencodeOutput = 32000;  // what it asks for at most

Expected<std::string> codex_config(const AgentTarget& target, std::string_view existing) {
  std::vector<TomlMember> top = {{"model", toml_string(target.model)},
                                 {"model_provider", toml_string(kProvider)},
                                 {"web_search", toml_string("disabled")}};  // which OpenAI's servers do
  if (target.context_length > 0)
    top.push_back({"model_context_window", std::to_string(target.context_length)});
  std::vector<TomlMember> provider = {{"name", toml_string(kProvider)},
                                      {"base_url", toml_string(target.base_url + "/v1")},
                                      {"wire_api", toml_string("responses")}};
  if (!target.api_key.empty()) {
    provider.push_back(
        {"http_headers", "{ Authorization = " + toml_string("Bearer " + target.api_key) + " }"});
  }
  return set_in_toml(existing, top, {"model_providers", kProvider}, provider);
}

// Claude Code asks for models of three sizes by name, and puts a line that changes with every
// request ahead of its system prompt (the attribution header), which would leave no prefix to find
// in the cache.
Json claude_settings(const AgentTarget& target) {
  Json env = {{"ANTHROPIC_BASE_URL", target.base_url},
              {"ANTHROPIC_AUTH_TOKEN", target.api_key.empty() ? kProvider : target.api_key}};
  for (const char* name : {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
                           "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"}) {
    env[name] = target.model;
  }
  env["CLAUDE_CODE_ATTRIBUTION_HEADER"] = "0";
  if (target.context_length > 0)
    env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = std::to_string(target.context_length);
  return {{"env", std::move(env)}};
}

Json opencode_config(const AgentTarget& target) {
  Json model = {{"name", target.model}};
  if (target.context_length > 0) {
    // It keeps room for an answer of this length, and starts afresh when that is gone.
    model["limit"] = {
        {"context", target.context_length},
        {"output", std::min(kMostOpencodeOutput, std::max(1, target.context_length / 4))}};
  }
  Json options = {{"baseURL", target.base_url + "/v1"}};
  if (!target.api_key.empty()) options["apiKey"] = target.api_key;
  const Json provider = {{"npm", "@ai-sdk/openai-compatible"},
                         {"name", kProvider},
                         {"options", std::move(options)},
                         {"models", {{target.model, std::move(model)}}}};
  return {{"$schema", "https://opencode.ai/config.json"},
          {"model", std::string(kProvider) + "/" + target.model},
          {"provider", {{kProvider, provider}}}};
}

}  // namespace

Expected<std::string> agent_config_path(AgentKind agent, const std::string& profile, const AgentPlaces& places) {
  const auto folder = [&](const char* name, const char* under_home) -> Expected<std::string> {
    if (std::string said = places.variable(name); !said.empty()) return said;
    const std::string home = places.variable("HOME");
    if (home.empty()) return fail(invalid("no HOME is set: say which file with --file"));
    return home + "/" + under_home;
  };
  if (agent == AgentKind::kCodex) {
    return folder("CODEX_HOME", ".codex").map([&](const std::string& path) {
      return path + "/" + (profile.empty() ? "" : profile + ".") + "config.toml";
    });
  }
  if (agent == AgentKind::kClaude)
    return folder("CLAUDE_CONFIG_DIR", ".claude").map([](const std::string& path) { return path + "/settings.json"; });
  if (std::string said = places.variable("OPENCODE_CONFIG"); !said.empty()) return said;
  return folder("XDG_CONFIG_HOME", ".config").map([&](const std::string& path) {
    const std::string file = path + "/opencode/opencode.json";
    return places.exists(file + "c") ? file + "c" : file;
  });
}

Expected<std::string> point_agent(AgentKind agent, const AgentTarget& target,
                                  std::string_view existing) {
  switch (agent) {
    case AgentKind::kCodex:
      return codex_config(target, existing);
    case AgentKind::kClaude:
      return set_in_json(existing, claude_settings(target), JsonDialect::kStrict);
    case AgentKind::kOpencode:
      break;
  }
  return set_in_json(existing, opencode_config(target), JsonDialect::kCommented);
}

}  // namespace tailrace
