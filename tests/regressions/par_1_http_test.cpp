// PAR-1: gpt-oss headers that the model gets wrong never break a stream, and control tokens never leak into names.
// tests/output runs the corpus and hostile mixes of control tokens, cut everywhere.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

FixtureOptions harmony() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kHarmony;
  options.config.model.reasoning_parser = ReasoningFormat::kHarmony;
  options.scripts = parser_scripts();
  options.scripts.push_back({"final", {"<|start|>", "assistant", "<|constrain|>", "<|end|>", "Hello", "<|return|>"}});
  return options;
}

Json with_tool(const std::string& content, const char* name) {
  const Json tool = {{"type", "function"}, {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
  return chat_body(content, {{"tools", Json::array({tool})}});
}

TEST(Par1, a_doubled_recipient_is_one_call) {
  ServerFixture fixture(harmony());
  const Answer answer = fixture.ask_both(with_tool("harm", "get_time"));
  EXPECT_EQ(shown(answer.calls[0]), R"(get_time{"tz":"UTC"})");
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.finish[0], "tool_calls");
  EXPECT_EQ(answer.usage["completion_tokens"], 6);
}

TEST(Par1, a_function_that_is_not_offered_is_content) {
  ServerFixture fixture(harmony());
  for (const Json& body : {with_tool("harm", "other"), chat_body("harm")}) {
    const Answer answer = fixture.ask_both(body);
    EXPECT_TRUE(answer.calls[0].empty());
    EXPECT_EQ(answer.text[0], "commentary to=functions.get_time to=functions.get_time{\"tz\":\"UTC\"}");
    EXPECT_EQ(answer.finish[0], "stop");
  }
}

TEST(Par1, text_after_a_header_that_ends_early_is_not_swallowed) {
  ServerFixture fixture(harmony());
  const Answer answer = fixture.ask_both(with_tool("final", "get_time"));
  EXPECT_EQ(answer.text[0], "Hello");
  EXPECT_EQ(answer.finish[0], "stop");
}

}  // namespace
}  // namespace tailrace::test
