// Reasoning and tool calls through HTTP: requests, deltas, finish reasons, the same streamed or not.
#include "http/server_fixture.h"
#include "server/choice_stream.h"

namespace tailrace::test {
namespace {

Json tool(const std::string& name, const Json& properties = Json::object()) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
}

FixtureOptions qwen_options() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwen;
  options.scripts = {{"one",
                      {"Sure", ".\n", "<tool_call>", "\n{\"name\": \"get_time\", \"argu", "ments\": {\"tz\": \"Eur",
                       "ope/", "Paris\"", "}}\n", "</tool_call>"}},
                     {"two",
                      {"<tool_", "call>{\"name\":\"run\",\"arguments\":{\"cmd\":\"a\"}}", "</tool_", "call>\n<tool_ca",
                       "ll>{\"name\":\"run\",\"arguments\":{\"cmd\":\"b\"}}</tool_call> "}},
                     {"none", {"It is ", "noon."}}};
  return options;
}

Json with_tools(const std::string& content, Json more = Json::object()) {
  more["tools"] = Json::array({tool("get_time", {{"tz", {{"type", "string"}}}}), tool("run")});
  return chat_body(content, more);
}

TEST(Tools, a_call_beside_content) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("one"));
  EXPECT_EQ(answer.text[0], "Sure.");
  EXPECT_EQ(shown(answer.calls[0]), R"(get_time{"tz":"Europe/Paris"})");
  EXPECT_EQ(answer.finish[0], "tool_calls");
  EXPECT_EQ(answer.usage["completion_tokens"], 10);
  EXPECT_EQ(answer.calls[0][0].id.size(), 9u);
}

TEST(Tools, two_calls_and_null_content) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("two"));
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(shown(answer.calls[0]), R"(run{"cmd":"a"} run{"cmd":"b"})");
  EXPECT_NE(answer.calls[0][0].id, answer.calls[0][1].id);
  const Json whole = Json::parse(fixture.post("/v1/chat/completions", with_tools("two")).body);
  EXPECT_TRUE(whole["choices"][0]["message"]["content"].is_null());
}

TEST(Tools, choices_have_ids_of_their_own) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("one", {{"n", 2}}));
  EXPECT_EQ(shown(answer.calls[1]), R"(get_time{"tz":"Europe/Paris"})");
  EXPECT_NE(answer.calls[0][0].id, answer.calls[1][0].id);
}

TEST(Tools, without_parallel_calls_the_answer_ends_with_the_first) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("two", {{"parallel_tool_calls", false}}));
  EXPECT_EQ(shown(answer.calls[0]), R"(run{"cmd":"a"})");
  EXPECT_EQ(answer.finish[0], "tool_calls");
  EXPECT_EQ(answer.usage["completion_tokens"], 2);
  EXPECT_TRUE(ServerFixture::eventually([&] { return fixture.engine.num_open() == 0; }));
}

TEST(Tools, a_call_that_max_tokens_cuts_is_json_and_finishes_with_length) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("one", {{"max_tokens", 6}}));
  EXPECT_EQ(shown(answer.calls[0]), R"(get_time{"tz":"Europe/"})");
  EXPECT_EQ(answer.finish[0], "length");
  const Answer before = fixture.ask_both(with_tools("one", {{"max_tokens", 4}}));
  EXPECT_TRUE(before.calls[0].empty());
  EXPECT_EQ(before.text[0], "Sure.\n<tool_call>\n{\"name\": \"get_time\", \"argu");
  EXPECT_EQ(before.finish[0], "length");
}

TEST(Tools, no_tools_offered_or_wanted_no_calls) {
  ServerFixture fixture(qwen_options());
  for (const Json& body : {chat_body("two"), with_tools("two", {{"tool_choice", "none"}})}) {
    const Answer answer = fixture.ask_both(body);
    EXPECT_TRUE(answer.calls[0].empty());
    EXPECT_EQ(answer.text[0].rfind("<tool_call>{\"name\":\"run\"", 0), 0u);
    EXPECT_EQ(answer.finish[0], "stop");
  }
  const Answer plain = fixture.ask_both(with_tools("none"));
  EXPECT_EQ(plain.text[0], "It is noon.");
  EXPECT_EQ(plain.finish[0], "stop");
}

TEST(Tools, refused_where_the_model_writes_no_calls) {
  ServerFixture fixture;  // its template names no family
  const Answer answer = fixture.ask(with_tools("abc"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["param"], "tools");
  EXPECT_EQ(fixture.ask_both(with_tools("abc", {{"tool_choice", "none"}})).text[0], "DEFGGHIJJKK");
}

TEST(Tools, refused_where_the_template_does_not_show_them) {
  FixtureOptions options = qwen_options();
  options.model_ready = false;
  ServerFixture fixture(options);
  fixture.text.text->chat_template = *ChatTemplate::compile("{% for m in messages %}{{ m.content }} {% endfor %}", {});
  fixture.load();
  const Json function = {{"name", "f"}, {"parameters", {{"type", "object"}}}};
  Json flat = function, plain = {{"name", "f"}, {"input_schema", {{"type", "object"}}}};
  flat["type"] = "function";
  const Json messages = chat_body("none")["messages"];
  const std::pair<const char*, Json> requests[] = {
      {"/v1/chat/completions", {{"messages", messages}, {"tools", {{{"type", "function"}, {"function", function}}}}}},
      {"/v1/responses", {{"input", "none"}, {"tools", {flat}}}},
      {"/v1/messages", {{"model", "m"}, {"messages", messages}, {"max_tokens", 9}, {"tools", {plain}}}},
      {"/v1/messages/count_tokens", {{"model", "m"}, {"messages", messages}, {"tools", {plain}}}}};
  for (const auto& [path, body] : requests) {
    const HttpReply reply = fixture.post(path, body);
    EXPECT_EQ(reply.status, 400) << path << reply.body;
    EXPECT_NE(reply.body.find("tools: this model's chat template does not show them"), std::string::npos) << reply.body;
    Json without = body;
    without.erase("tools");
    EXPECT_EQ(fixture.post(path, without).status, 200) << path;
  }
}

TEST(Tools, log_probabilities_come_with_calls) {
  ServerFixture fixture(qwen_options());
  const Answer answer = fixture.ask_both(with_tools("one", {{"logprobs", true}}));
  EXPECT_EQ(answer.logprobs[0].size(), 9u);
}

TEST(Tools, the_second_turn_takes_the_calls_back) {
  ServerFixture fixture(qwen_options());
  const Answer first = fixture.ask_both(with_tools("one"));
  Json body = with_tools("one");
  body["messages"].push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({{
      {"id", first.calls[0][0].id}, {"type", "function"},
      {"function", {{"name", "get_time"}, {"arguments", first.calls[0][0].arguments}}}}})}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", first.calls[0][0].id}, {"content", "none"}});
  EXPECT_EQ(fixture.ask_both(body).text[0], "It is noon.");
}

TEST(Tools, reasoning_effort_needs_a_template_that_knows_it) {
  ServerFixture fixture;
  const Answer answer = fixture.ask(chat_body("abc", {{"reasoning_effort", "low"}}));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["param"], "reasoning_effort");
}

// What is sent after each token, whatever the network joins.
TEST(Tools, arguments_go_out_as_they_come) {
  const ScriptedText text = make_scripted_text(qwen_options().scripts);
  auto request = std::make_shared<Request>();
  request->stop_token_ids = {text.eos};
  const auto tools = std::make_shared<const OfferedTools>(with_tools("")["tools"]);
  ChoiceRules rules;
  rules.parser = make_output_parser({ToolFormat::kQwen}, ThinkStart::kOutside, tools, *text.text->tokenizer);
  ChoiceStream stream(request, text.text->tokenizer, std::move(rules));
  std::vector<std::string> sent;
  for (TokenId id = *text.text->tokenizer->token_to_id("<|s:one|>"); id != text.eos;) {
    id = text.next(id);
    TokenEvent event;
    event.id = id;
    stream.accept(event);
    const ChoiceDelta delta = stream.take_delta();
    std::string line = delta.text_of(AnswerPiece::Kind::kContent);
    for (const auto& call : delta.calls()) line += (call.call_id.empty() ? "+" : call.name + "+") + call.text;
    sent.push_back(line);
  }
  EXPECT_EQ(sent, (std::vector<std::string>{"Sure", ".", "", "", "get_time+{\"tz\":\"Eur", "+ope/", "+Paris\"", "+}",
                                            "", ""}));
}

}  // namespace
}  // namespace tailrace::test
