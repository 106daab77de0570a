#include "server/agent_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "server/json.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const AgentTarget kTarget{"http://127.0.0.1:8000", "org/m", "", 32768};

std::string pointed(AgentKind agent, const std::string& existing,
                    const AgentTarget& target = kTarget) {
  const auto out = point_agent(agent, target, existing);
  return out ? *out : "fault: " + out.error().message();
}

TEST(AgentConfig, codex) {
  EXPECT_EQ(pointed(AgentKind::kCodex, ""),
            "model = \"org/m\"\nmodel_provider = \"tailrace\"\nmodel_context_window = 32768\n\n"
            "[model_providers.tailrace]\nname = \"tailrace\"\nbase_url = "
            "\"http://127.0.0.1:8000/v1\"\nwire_api = \"responses\"\n");
  const std::string merged =
      pointed(AgentKind::kCodex, "model = \"o\" \n[projects.\"/x\"]\ntrust_level = \"trusted\"\n",
              {"http://h:1", "m", "k\"", 0});
  EXPECT_EQ(merged,
            "model = \"m\"\nmodel_provider = \"tailrace\"\n[projects.\"/x\"]\ntrust_level = "
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

TEST(AgentConfig, each_agent_has_its_own_file) {
  std::map<std::string, std::string> environment = {{"HOME", "/h"}};
  const auto path = [&](AgentKind agent) {
    const auto out = agent_config_path(agent, [&](const char* name) { return environment[name]; });
    return out ? *out : "fault: " + out.error().message();
  };
  EXPECT_EQ(path(AgentKind::kCodex), "/h/.codex/config.toml");
  EXPECT_EQ(path(AgentKind::kClaude), "/h/.claude/settings.json");
  EXPECT_EQ(path(AgentKind::kOpencode), "/h/.config/opencode/opencode.json");
  environment = {{"CODEX_HOME", "/c"}, {"XDG_CONFIG_HOME", "/x"}};
  EXPECT_EQ(path(AgentKind::kCodex), "/c/config.toml");
  EXPECT_EQ(path(AgentKind::kOpencode), "/x/opencode/opencode.json");
  EXPECT_EQ(path(AgentKind::kClaude).rfind("fault: ", 0), 0u);
}

struct Files : testing::Test {
  Files() : folder(fs::path(testing::TempDir()) / ("agent_config_" + std::to_string(::getpid()))) {
    fs::create_directory(folder);
  }
  ~Files() override { fs::remove_all(folder); }
  static std::string read(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  size_t count() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  const fs::path folder;
};

TEST_F(Files, a_new_file_is_the_users_alone) {
  const fs::path path = folder / "a" / "b.json";
  EXPECT_EQ(replace_file(path, "x\n").value(), "");
  EXPECT_EQ(read(path), "x\n");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Files, what_was_there_is_kept_every_time) {
  const fs::path path = folder / "c";
  std::ofstream(path) << "one";
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  EXPECT_EQ(replace_file(path, "two").value(), path.string() + ".bak");
  EXPECT_EQ(replace_file(path, "three").value(), path.string() + ".bak2");
  EXPECT_EQ(read(path.string() + ".bak") + read(path.string() + ".bak2") + read(path),
            "onetwothree");
  EXPECT_EQ(fs::status(path).permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  EXPECT_EQ(count(), 3u);
}

TEST_F(Files, a_link_stays_one) {
  std::ofstream(folder / "real") << "one";
  fs::create_symlink("real", folder / "link");
  ASSERT_TRUE(replace_file(folder / "link", "two").has_value());
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read(folder / "real"), "two");
}

TEST_F(Files, a_failure_leaves_all_as_it_was) {
  fs::create_directory(folder / "d");
  EXPECT_FALSE(replace_file(folder / "d", "x").has_value());
  EXPECT_EQ(count(), 1u);
}

}  // namespace
}  // namespace tailrace
