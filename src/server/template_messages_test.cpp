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

}  // namespace
}  // namespace tailrace
