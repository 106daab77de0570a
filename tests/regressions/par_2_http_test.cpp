// PAR-2: Qwen's XML calls while streaming. tests/output has the corpus, cut everywhere.
#include "http/server_fixture.h"
#include "server/choice_stream.h"

namespace tailrace::test {
namespace {

FixtureOptions coder() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwenCoder;
  options.scripts = parser_scripts();
  return options;
}

Json with_tool(const std::string& content, const char* name, const Json& properties, Json more = Json::object()) {
  const Json parameters = {{"type", "object"}, {"properties", properties}};
  more["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}}});
  return chat_body(content, more);
}

const Json kWriteFile = {
    {"path", {{"type", "string"}}}, {"content", {{"type", "string"}}}, {"n", {{"type", "integer"}}}};

TEST(Par2, closing_tags_inside_a_value_are_text) {
  ServerFixture fixture(coder());
  const Answer answer = fixture.ask_both(with_tool("qxml", "write_file", kWriteFile));
  EXPECT_EQ(shown(answer.calls[0]), R"(write_file{"path":"/tmp/a.txt","content":"line1\n</tool_call> is text","n":3})");
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.finish[0], "tool_calls");
}

TEST(Par2, cut_by_max_tokens_the_arguments_are_json_and_no_call_is_claimed) {
  ServerFixture fixture(coder());
  for (int max_tokens = 1; max_tokens <= 11; ++max_tokens) {
    const Answer answer = fixture.ask_both(with_tool("qxml", "write_file", kWriteFile, {{"max_tokens", max_tokens}}));
    EXPECT_EQ(answer.finish[0], "length");
    EXPECT_EQ(answer.usage["completion_tokens"], max_tokens);
    for (const auto& call : answer.calls[0]) EXPECT_TRUE(Json::accept(call.arguments)) << call.arguments;
  }
}

TEST(Par2, a_parameter_without_a_name_makes_the_whole_call_text) {
  ServerFixture fixture(coder());
  const Answer answer = fixture.ask_both(with_tool("qbad", "run", {{"cmd", {{"type", "string"}}}}));
  EXPECT_TRUE(answer.calls[0].empty());
  EXPECT_EQ(answer.text[0],
            "<tool_call>\n<function=run>\n<parameter=\necho hi\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(answer.finish[0], "stop");
}

// What is sent after each token: strings go out while they are written.
TEST(Par2, string_values_stream) {
  const ScriptedText text = make_scripted_text(parser_scripts());
  auto request = std::make_shared<Request>();
  request->stop_token_ids = {text.eos};
  ChoiceRules rules;
  rules.parser = make_output_parser(
      {ToolFormat::kQwenCoder}, ThinkStart::kOutside,
      std::make_shared<const OfferedTools>(with_tool("", "write_file", kWriteFile)["tools"]), *text.text->tokenizer);
  ChoiceStream stream(request, text.text->tokenizer, std::move(rules));
  std::vector<std::string> sent;
  for (TokenId id = *text.text->tokenizer->token_to_id("<|s:qxml|>"); id != text.eos;) {
    TokenEvent event;
    event.id = id = text.next(id);
    stream.accept(event);
    for (const auto& call : stream.take_delta().calls()) sent.push_back(call.name + call.text);
  }
  EXPECT_EQ(sent, (std::vector<std::string>{"write_file{\"path\":\"/tmp/a", ".txt", "\",\"content\":\"line1",
                                            "\\n</tool_call> is text", "\"", ",\"n\":3}"}));
}

}  // namespace
}  // namespace tailrace::test
