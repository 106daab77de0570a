// `tailrace launch`: shows, or writes, the configuration that points a coding agent at a server.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "run.h"
#include "server/agent_config.h"
#include "server/model_list.h"
#include "server/user_file.h"

namespace tailrace {
namespace {

std::string command_of(const LaunchConfig& config) {
  if (config.agent == AgentKind::kClaude) return "claude";
  if (config.agent == AgentKind::kOpencode) return "opencode";
  return config.profile.empty() ? "codex" : "codex --profile " + config.profile;
}

// What the server is, asked where it runs; without one the model has to be named.
Expected<AgentTarget> find_target(const LaunchConfig& config) {
  AgentTarget target{config.base_url, config.model, config.api_key};
  const auto address = parse_url(config.base_url).and_then([](const Url& url) { return address_of(url, "80"); });
  if (!address && address.error().code() == StatusCode::kInvalidArgument) return fail(address.error());
  const auto listed = address.and_then([&](ServerAddress server) {
    server.api_key = config.api_key;
    return list_models(server, [] { return false; });
  });
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

Expected<std::string> file_of(const LaunchConfig& config) {
  if (!config.file.empty()) return config.file;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto exists = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  return agent_config_path(config.agent, config.profile, {variable, exists});
}

// What belongs into a file that this cannot change.
Status refuse(const LaunchConfig& config, const AgentTarget& target, const Status& status, const UserFile& file) {
  if (const auto snippet = point_agent(config.agent, target, ""); snippet) {
    std::fprintf(stderr, "This belongs into %s, which has to be changed by hand:\n\n", file.path.c_str());
    std::fflush(stderr);
    std::printf("%s", snippet->c_str());
    std::fflush(stdout);
  }
  return Status(status.code(), file.path + ": " + status.message());
}

Status write(const LaunchConfig& config, const UserFile& file, const std::string& text) {
  const auto done = replace_user_file(file, text, !config.api_key.empty());
  if (!done) return done.error();
  std::printf("Wrote %s%s%s. Start the agent with: %s\n", file.path.c_str(),
              done->copy.empty() ? "" : ("; what was there is in " + done->copy).c_str(),
              done->tightened ? "; since it holds the key, others can read it no more" : "",
              command_of(config).c_str());
  return Status();
}

Status launch(const LaunchConfig& config) {
  const auto target = find_target(config);
  if (!target) return target.error();
  const auto path = file_of(config);
  if (!path) return path.error();
  const auto file = look_at_user_file(*path);
  if (!file) return file.error();
  const auto text = point_agent(config.agent, *target, file->text);
  if (!text) return refuse(config, *target, text.error(), *file);
  const bool same = file->exists && *text == file->text;
  if (config.write && !same) return write(config, *file, *text);
  if (!config.write) std::printf("%s", text->c_str());
  std::fflush(stdout);
  std::fprintf(config.write ? stdout : stderr,
               same ? "%s points at %s already.\n" : "\nThis is what --write puts into %s.\n", file->path.c_str(),
               target->base_url.c_str());
  return Status();
}

}  // namespace

int run_launch(const LaunchConfig& config) {
  const Status status = launch(config);
  return status.ok() ? 0 : bad_input(status);
}

}  // namespace tailrace
