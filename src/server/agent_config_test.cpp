#include "server/agent_config.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/json.h"

namespace tailrace {
namespace {

const AgentTarget kTarget{"http://127.0.0.1:8000", "org/m", "", 32768};

std::string pointed(AgentKind agent, const std::string& existing,
                    const AgentTarget& target = kTarget) {
  const auto out = point_agent(agent, target, existing);
  return out ? *out : "fault: " + out.error().message();
}

TEST(AgentConfig, codex) {
  EXPECT_EQ(pointed(AgentKind::kCodex, ""),
            "model = \"org/m\"\nmodel_provider = \"tailrace\"\nweb_search = \"disabled\"\n"
            "model_context_window = 32768\n\n"
            "[model_providers.tailrace]\nname = \"tailrace\"\nbase_url = "
            "\"http://127.0.0.1:8000/v1\"\nwire_api = \"responses\"\n");
  const std::string merged =
      pointed(AgentKind::kCodex, "model = \"o\" \n[projects.\"/x\"]\ntrust_level = \"trusted\"\n",
              {"http://h:1", "m", "k\"", 0});
  EXPECT_EQ(merged,
            "model = \"m\" \nmodel_provider = \"tailrace\"\nweb_search = \"disabled\"\n"
            "[projects.\"/x\"]\ntrust_level = "
            "\"trusted\"\n\n"
            "[model_providers.tailrace]\nname = \"tailrace\"\nbase_url = "
            "\"http://h:1/v1\"\nwire_api = \"responses\"\n"
            "http_headers = { Authorization = \"Bearer k\\\"\" }\n");
}

TEST(AgentConfig, claude) {
  const Json fresh = Json::parse(pointed(AgentKind::kClaude, ""));
  EXPECT_EQ(
      fresh,
      Json::parse(
          R"({"env":{"ANTHROPIC_BASE_URL":"http://127.0.0.1:8000","ANTHROPIC_AUTH_TOKEN":"tailrace",
      "ANTHROPIC_MODEL":"org/m","ANTHROPIC_DEFAULT_OPUS_MODEL":"org/m","ANTHROPIC_DEFAULT_SONNET_MODEL":"org/m",
      "ANTHROPIC_DEFAULT_HAIKU_MODEL":"org/m","CLAUDE_CODE_ATTRIBUTION_HEADER":"0",
      "CLAUDE_CODE_AUTO_COMPACT_WINDOW":"32768"}})"));
  const Json merged = Json::parse(
      pointed(AgentKind::kClaude,
              R"({"z":[1.50,{"a":null}],"env":{"MINE":"1","ANTHROPIC_MODEL":"x"},"a":true})",
              {"http://h:1", "m", "key", 0}));
  std::string names;
  for (const auto& [name, value] : merged.items()) names += name + " ";
  EXPECT_EQ(names, "z env a ");
  EXPECT_EQ(merged["z"], Json::parse(R"([1.5,{"a":null}])"));
  EXPECT_EQ(merged["env"]["MINE"], "1");
  EXPECT_EQ(merged["env"]["ANTHROPIC_MODEL"], "m");
  EXPECT_EQ(merged["env"]["ANTHROPIC_AUTH_TOKEN"], "key");
  EXPECT_FALSE(merged["env"].contains("CLAUDE_CODE_AUTO_COMPACT_WINDOW"));
}

TEST(AgentConfig, opencode) {
  const Json merged = Json::parse(
      pointed(AgentKind::kOpencode, R"({"theme":"x","provider":{"other":{"npm":"y"}}})"));
  EXPECT_EQ(
      merged,
      Json::parse(
          R"({"theme":"x","provider":{"other":{"npm":"y"},"tailrace":{"npm":"@ai-sdk/openai-compatible",
      "name":"tailrace","options":{"baseURL":"http://127.0.0.1:8000/v1"},
      "models":{"org/m":{"name":"org/m","limit":{"context":32768,"output":8192}}}}},
      "$schema":"https://opencode.ai/config.json","model":"tailrace/org/m"})"));
}

TEST(AgentConfig, what_cannot_be_read_is_refused) {
  EXPECT_EQ(pointed(AgentKind::kClaude, "{ // comment\n}").rfind("fault: not JSON", 0), 0u);
  EXPECT_EQ(pointed(AgentKind::kClaude, "[]"), "fault: not a JSON object");
  EXPECT_EQ(pointed(AgentKind::kClaude, R"({"env":"x"})"), "fault: env is no object there");
  EXPECT_EQ(pointed(AgentKind::kOpencode, R"({"provider":{"tailrace":[]}})"),
            "fault: provider.tailrace is no object there");
  EXPECT_EQ(pointed(AgentKind::kCodex, "model_providers = {}\n")
                .rfind("fault: line 1: [model_providers.tailrace]", 0),
            0u);
}

TEST(AgentConfig, comments_are_for_opencode_alone) {
  EXPECT_EQ(pointed(AgentKind::kOpencode, "{\n  // mine\n}").rfind("{\n  // mine\n  \"$schema\"", 0), 0u);
  EXPECT_EQ(pointed(AgentKind::kClaude, "{\n  // mine\n}").rfind("fault: not JSON", 0), 0u);
}

TEST(AgentConfig, each_agent_has_its_own_file) {
  std::map<std::string, std::string> environment = {{"HOME", "/h"}};
  std::set<std::string> files;
  const AgentPlaces places{[&](const char* name) { return environment[name]; },
                           [&](const std::string& path) { return files.count(path) > 0; }};
  const auto path = [&](AgentKind agent, const char* profile = "") {
    const auto out = agent_config_path(agent, profile, places);
    return out ? *out : "fault: " + out.error().message();
  };
  EXPECT_EQ(path(AgentKind::kCodex), "/h/.codex/config.toml");
  EXPECT_EQ(path(AgentKind::kCodex, "local"), "/h/.codex/local.config.toml");
  EXPECT_EQ(path(AgentKind::kClaude), "/h/.claude/settings.json");
  EXPECT_EQ(path(AgentKind::kOpencode), "/h/.config/opencode/opencode.json");
  files = {"/h/.config/opencode/opencode.json", "/h/.config/opencode/opencode.jsonc"};
  EXPECT_EQ(path(AgentKind::kOpencode), "/h/.config/opencode/opencode.jsonc");
  environment = {{"CODEX_HOME", "/c"}, {"XDG_CONFIG_HOME", "/x"}};
  EXPECT_EQ(path(AgentKind::kCodex), "/c/config.toml");
  EXPECT_EQ(path(AgentKind::kOpencode), "/x/opencode/opencode.json");
  EXPECT_EQ(path(AgentKind::kClaude).rfind("fault: ", 0), 0u);
  environment["OPENCODE_CONFIG"] = "/o.json";
  EXPECT_EQ(path(AgentKind::kOpencode), "/o.json");
}

}  // namespace
}  // namespace tailrace
