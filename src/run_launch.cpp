// `tailrace launch`: shows, or writes, the configuration that points a coding agent at a server.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "run.h"
#include "server/agent_config.h"
#include "server/model_list.h"

namespace tailrace {
namespace {

const char* command_of(AgentKind agent) {
  return agent == AgentKind::kCodex ? "codex" : agent == AgentKind::kClaude ? "claude" : "opencode";
}

// What the server is, asked where it runs; without one the model has to be named.
Expected<AgentTarget> find_target(const LaunchConfig& config) {
  AgentTarget target{config.base_url, config.model, config.api_key};
  const bool secure =
      config.base_url.rfind("https://", 0) == 0;  // behind a proxy: nothing here speaks TLS
  auto address = parse_url(config.base_url);
  if (!address && !secure) return fail(address.error());
  Expected<std::vector<ListedModel>> listed =
      fail(StatusCode::kUnavailable, "https is not spoken here");
  if (address) {
    address->api_key = config.api_key;
    listed = list_models(*address, [] { return false; });
  }
  if (!listed) {
    if (!config.model.empty()) return target;
    return fail(StatusCode::kUnavailable,
                "cannot ask " + config.base_url + " for its model (" + listed.error().message() +
                    "): start the server, or name the model with --model");
  }
  auto found = listed->begin();
  if (!config.model.empty()) {
    found = std::find_if(listed->begin(), listed->end(),
                         [&](const auto& model) { return model.name == config.model; });
  }
  if (found == listed->end()) {
    return fail(StatusCode::kNotFound, config.base_url + " does not serve " + config.model +
                                           " but " + listed->front().name);
  }
  target.model = found->name;
  target.context_length = found->context_length;
  return target;
}

Expected<std::string> read_file(const std::string& path) {
  std::error_code error;  // a loop of links, say
  const bool there = std::filesystem::exists(path, error);
  if (error) return fail(StatusCode::kInvalidArgument, "cannot reach " + path + ": " + error.message());
  if (!there) return std::string();
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    if (std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) == 0)
      return std::string();
    return fail(StatusCode::kInvalidArgument, "cannot read " + path);
  }
  return text.str();
}

Status write(const LaunchConfig& config, const AgentTarget& target, const std::string& path) {
  const auto existing = read_file(path);
  if (!existing) return existing.error();
  const auto text = point_agent(config.agent, target, *existing);
  if (!text) return Status(text.error().code(), path + ": " + text.error().message());
  if (*text == *existing) {
    std::printf("%s points at %s already.\n", path.c_str(), target.base_url.c_str());
    return Status();
  }
  const auto copy = replace_file(path, *text);
  if (!copy) return copy.error();
  std::printf("Wrote %s%s. Start the agent with: %s\n", path.c_str(),
              copy->empty() ? "" : ("; what was there is in " + *copy).c_str(),
              command_of(config.agent));
  return Status();
}

Status launch(const LaunchConfig& config) {
  const auto target = find_target(config);
  if (!target) return target.error();
  const auto own = agent_config_path(config.agent, [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  });
  if (config.file.empty() && !own) return own.error();
  const std::string path = config.file.empty() ? *own : config.file;
  if (config.write) return write(config, *target, path);
  const auto text = point_agent(config.agent, *target, "");
  if (!text) return text.error();
  std::printf("%s", text->c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "\nThis belongs into %s; --write merges it into what is there.\n",
               path.c_str());
  return Status();
}

}  // namespace

int run_launch(const LaunchConfig& config) {
  const Status status = launch(config);
  return status.ok() ? 0 : bad_input(status);
}

}  // namespace tailrace
