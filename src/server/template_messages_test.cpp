#include "server/template_messages.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

Json call(const std::string& id, const std::string& name) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", Json::object()}}}};
}

Json two_calls() {
  return Json::array({{{"role", "user"}, {"content", "x"}},
                      {{"role", "assistant"}, {"content", "c"}, {"reasoning_content", "r"},
                       {"tool_calls", Json::array({call("call_one", "f"), call("abcDEF123", "g")})}},
                      {{"role", "tool"}, {"content", "of g"}, {"tool_call_id", "abcDEF123"}},
                      {{"role", "tool"}, {"content", "of f"}, {"tool_call_id", "call_one"}},
                      {{"role", "assistant"}, {"content", "end"}, {"reasoning_content", "s"}}});
}

TEST(TemplateMessages, others_are_left_alone) {
  EXPECT_EQ(messages_for_template(two_calls(), {ToolFormat::kQwen, ReasoningFormat::kQwen3}, ""), two_calls());
}

TEST(TemplateMessages, gpt_oss_takes_one_call_a_message_and_thinking) {
  const Json out = messages_for_template(two_calls(), {ToolFormat::kHarmony, ReasoningFormat::kHarmony}, "");
  ASSERT_EQ(out.size(), 6u);
  EXPECT_EQ(out[1]["tool_calls"], Json::array({call("call_one", "f")}));
  EXPECT_EQ(out[1]["thinking"], "r\n\nc");
  EXPECT_EQ(out[1]["content"], "");
  EXPECT_EQ(out[2]["content"], "of f");
  EXPECT_EQ(out[3]["tool_calls"], Json::array({call("abcDEF123", "g")}));
  EXPECT_FALSE(out[3].contains("thinking"));
  EXPECT_EQ(out[4]["content"], "of g");
  EXPECT_EQ(out[5].dump(), R"({"role":"assistant","content":"end"})");
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(tools_for_template(tools, {ToolFormat::kHarmony})[0]["function"]["description"], "");
  EXPECT_EQ(tools_for_template(tools, {ToolFormat::kQwen}), tools);
}

TEST(TemplateMessages, mistral_takes_ids_of_nine_and_thinking_parts) {
  const OutputFormat format{ToolFormat::kMistral, ReasoningFormat::kMistral};
  const Json out = messages_for_template(two_calls(), format, "{% if block['type'] == 'thinking' %}");
  const std::string id = out[1]["tool_calls"][0]["id"];
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(out[3]["tool_call_id"], id);
  EXPECT_EQ(out[1]["tool_calls"][1]["id"], "abcDEF123");
  EXPECT_EQ(out[2]["tool_call_id"], "abcDEF123");
  EXPECT_EQ(out[4]["content"].dump(), R"([{"type":"thinking","thinking":"s"},{"type":"text","text":"end"}])");
  EXPECT_EQ(messages_for_template(two_calls(), format, "")[4]["reasoning_content"], "s");
}

std::string folded(const std::string& roles, const TemplateHabits& habits) {
  Json messages = Json::array();
  for (const char role : roles) {
    const char* name = role == 's' ? "system" : role == 'u' ? "user" : role == 't' ? "tool" : "assistant";
    messages.push_back({{"role", name}, {"content", std::to_string(messages.size())}});
  }
  std::string out;
  for (const Json& message : messages_for_template(messages, {}, "", habits))
    out += message["role"].get<std::string>().substr(0, 1) + "(" + message["content"].get<std::string>() + ") ";
  return out;
}

TEST(TemplateMessages, later_system_messages_become_the_users) {
  const TemplateHabits first_only{.later_system = false};
  EXPECT_EQ(folded("sus", {}), "s(0) u(1) s(2) ");
  EXPECT_EQ(folded("su", first_only), "s(0) u(1) ");
  EXPECT_EQ(folded("sus", first_only), "s(0) u(1\n\n<system>\n2\n</system>) ");
  EXPECT_EQ(folded("uasu", first_only), "u(0) a(1) u(<system>\n2\n</system>\n\n3) ");
  EXPECT_EQ(folded("uuatssu", first_only),
            "u(0) u(1) a(2) t(3) u(<system>\n4\n</system>\n\n<system>\n5\n</system>\n\n6) ");
  EXPECT_EQ(folded("usu", first_only), "u(0\n\n<system>\n1\n</system>) u(2) ");
}

TEST(TemplateMessages, users_alternate_where_they_have_to) {
  const TemplateHabits strict{.later_system = false, .user_runs = false};
  EXPECT_EQ(folded("uua", {}), "u(0) u(1) a(2) ");
  EXPECT_EQ(folded("suuau", strict), "s(0) u(1\n\n2) a(3) u(4) ");
  EXPECT_EQ(folded("uatu", strict), "u(0) a(1) t(2\n\n3) ");
  EXPECT_EQ(folded("uatsu", strict), "u(0) a(1) t(2\n\n<system>\n3\n</system>\n\n4) ");
}

TEST(TemplateMessages, a_system_message_that_would_be_lost_stands_before_the_last_user) {
  const TemplateHabits mistral{.later_system = false, .system_always = false, .user_runs = false};
  EXPECT_EQ(folded("sua", {}), "s(0) u(1) a(2) ");
  EXPECT_EQ(folded("suau", mistral), "u(1) a(2) u(0\n\n3) ");
  EXPECT_EQ(folded("suat", mistral), "u(0\n\n1) a(2) t(3) ");
  EXPECT_EQ(folded("suatu", mistral), "u(0\n\n1) a(2) t(3\n\n4) ");
  EXPECT_EQ(folded("sa", mistral), "u(0) a(1) ");
  EXPECT_EQ(folded("ua", mistral), "u(0) a(1) ");
}

TEST(TemplateMessages, results_that_would_be_lost_follow_their_calls) {
  Json messages = two_calls();
  messages.insert(messages.begin() + 2, Json{{"role", "user"}, {"content", "wait"}});
  messages.insert(messages.begin() + 4, Json{{"role", "assistant"}, {"content", "yes"}});
  EXPECT_EQ(messages_for_template(messages, {}, ""), messages);
  const Json out = messages_for_template(messages, {}, "", {.late_results = false});
  Json contents = Json::array();
  for (const Json& message : out) contents.push_back(message["content"]);
  EXPECT_EQ(contents, Json::array({"x", "c", "of g", "of f", "wait", "yes", "end"}));
  EXPECT_EQ(messages_for_template(two_calls(), {}, "", {.late_results = false}), two_calls());
}

}  // namespace
}  // namespace tailrace
