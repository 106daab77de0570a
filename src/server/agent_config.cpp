#include "server/agent_config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "server/json.h"
#include "server/toml_edit.h"

namespace tailrace {
namespace {

constexpr const char* kProvider = "tailrace";
constexpr int32_t kMostOpencodeOutput = 32000;  // what it asks for at most

Status wrong(const std::string& what) { return Status(StatusCode::kInvalidArgument, what); }

Expected<std::string> codex_config(const AgentTarget& target, std::string_view existing) {
  std::vector<TomlMember> top = {{"model", toml_string(target.model)},
                                 {"model_provider", toml_string(kProvider)}};
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

// Members of `wanted` over those of `out`; objects are merged, everything else is replaced.
Status merge(const Json& wanted, const std::string& path, Json& out) {
  for (const auto& [name, value] : wanted.items()) {
    const std::string inner = path.empty() ? name : path + "." + name;
    if (!value.is_object() || !out.contains(name)) {
      out[name] = value;
    } else if (!out[name].is_object()) {
      return wrong(inner + " is no object there");
    } else if (Status status = merge(value, inner, out[name]); !status.ok()) {
      return status;
    }
  }
  return Status();
}

Expected<std::string> merge_json(const Json& wanted, std::string_view existing) {
  Json out = Json::object();
  if (existing.find_first_not_of(" \t\r\n") != std::string_view::npos) {
    auto parsed = parse_json(existing);
    if (!parsed)
      return fail(
          wrong("not JSON (comments are not understood either): " + parsed.error().message));
    if (!parsed->is_object()) return fail(wrong("not a JSON object"));
    out = std::move(*parsed);
  }
  if (Status status = merge(wanted, "", out); !status.ok()) return fail(status);
  return out.dump(2) + "\n";
}

Status failed(const std::string& doing) { return wrong(doing + ": " + std::strerror(errno)); }

Status write_new(const std::string& path, std::string_view text, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return failed("cannot write " + path);
  Status status;
  while (status.ok() && !text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) status = failed("cannot write " + path);
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
  if (status.ok() && (::fchmod(fd, mode) != 0 || ::fsync(fd) != 0))
    status = failed("cannot write " + path);
  ::close(fd);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

}  // namespace

Expected<std::string> agent_config_path(AgentKind agent,
                                        const std::function<std::string(const char*)>& variable) {
  const auto folder = [&](const char* name, const char* under_home) -> Expected<std::string> {
    if (const std::string said = variable(name); !said.empty()) return said;
    const std::string home = variable("HOME");
    if (home.empty()) return fail(wrong("no HOME is set: say which file with --file"));
    return home + "/" + under_home;
  };
  const auto file = [](Expected<std::string> path, const char* name) -> Expected<std::string> {
    if (path) *path += name;
    return path;
  };
  switch (agent) {
    case AgentKind::kCodex:
      return file(folder("CODEX_HOME", ".codex"), "/config.toml");
    case AgentKind::kClaude:
      return file(folder("CLAUDE_CONFIG_DIR", ".claude"), "/settings.json");
    case AgentKind::kOpencode:
      break;
  }
  return file(folder("XDG_CONFIG_HOME", ".config"), "/opencode/opencode.json");
}

Expected<std::string> point_agent(AgentKind agent, const AgentTarget& target,
                                  std::string_view existing) {
  switch (agent) {
    case AgentKind::kCodex:
      return codex_config(target, existing);
    case AgentKind::kClaude:
      return merge_json(claude_settings(target), existing);
    case AgentKind::kOpencode:
      break;
  }
  return merge_json(opencode_config(target), existing);
}

Expected<std::string> replace_file(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (std::error_code none; !there && fs::is_symlink(path, none)) return fail(wrong(path + " is a link to nothing"));
  fs::path real = there ? fs::canonical(path, error) : fs::path(path);
  if (error) return fail(wrong("cannot reach " + path + ": " + error.message()));
  mode_t mode = S_IRUSR | S_IWUSR;  // it may hold a key
  std::string copy;
  if (there) {
    struct stat info {};
    if (::stat(real.c_str(), &info) != 0) return fail(failed("cannot read " + path));
    mode = info.st_mode & 07777;
    for (int i = 1; copy.empty() || fs::exists(copy, error); ++i)
      copy = real.string() + ".bak" + (i > 1 ? std::to_string(i) : "");
    fs::copy_file(real, copy, error);
    if (error) return fail(wrong("cannot copy " + path + ": " + error.message()));
  } else if (!real.parent_path().empty()) {
    fs::create_directories(real.parent_path(), error);
    if (error)
      return fail(wrong("cannot make " + real.parent_path().string() + ": " + error.message()));
  }
  const std::string fresh = real.string() + ".new-" + std::to_string(::getpid());
  if (Status status = write_new(fresh, text, mode); !status.ok()) return fail(status);
  if (::rename(fresh.c_str(), real.c_str()) == 0) return copy;
  const Status status = failed("cannot replace " + path);
  ::unlink(fresh.c_str());
  return fail(status);
}

}  // namespace tailrace
