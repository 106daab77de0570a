// Answers that must have a form: response_format, structured_outputs, tools that must be called. The engine's choices
// are wild; what comes out keeps the form.
#include <gtest/gtest.h>

#include "http/server_fixture.h"
#include "support/http_client.h"

namespace tailrace::test {
namespace {

constexpr const char* kSchema = R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"integer"}},)"
                                R"("required":["city","n"],"additionalProperties":false})";

FixtureOptions qwen_options() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwen;
  return options;
}

Json schema_format(const std::string& schema) {
  return {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", Json::parse(schema)}, {"strict", true}}}};
}

Json tools() {
  return Json::parse(R"([{"type":"function","function":{"name":"run","strict":true,"parameters":{"type":"object",)"
                     R"("properties":{"cmd":{"type":"string"},"n":{"type":"integer"}},"required":["cmd","n"],)"
                     R"("additionalProperties":false}}},)"
                     R"({"type":"function","function":{"name":"get_time","parameters":{"uniqueItems":true}}}])");
}

TEST(Forms, a_schema_is_kept_streamed_or_not_by_every_choice) {
  ServerFixture fixture;
  const Answer answer = fixture.ask_both(chat_body("abc", {{"response_format", schema_format(kSchema)}, {"n", 2}}));
  ASSERT_EQ(answer.status, 200) << answer.error.dump();
  for (int i = 0; i < 2; ++i) {
    const Json json = Json::parse(answer.text[i], nullptr, false);
    ASSERT_TRUE(json.is_object() && json.size() == 2) << answer.text[i];
    EXPECT_TRUE(json["city"].is_string() && json["n"].is_number()) << answer.text[i];
    EXPECT_EQ(answer.finish[i], "stop");
  }
}

TEST(Forms, every_field_in_chats_and_completions) {
  ServerFixture fixture;
  const auto text = [&](const Json& more) {
    const Answer chat = fixture.ask_both(chat_body("abc", more));
    EXPECT_EQ(chat.status, 200) << chat.error.dump();
    Json body = more;
    body["prompt"] = "abc";
    const Answer plain = fixture.ask_both(body, "/v1/completions");
    EXPECT_EQ(plain.status, 200) << plain.error.dump();
    EXPECT_EQ(chat.text, plain.text);
    return chat.text.empty() ? "" : chat.text[0];
  };
  EXPECT_TRUE(Json::parse(text({{"response_format", {{"type", "json_object"}}}}), nullptr, false).is_object());
  const Json schema = {{"json", Json::parse(kSchema)}};
  EXPECT_TRUE(Json::parse(text({{"structured_outputs", schema}}), nullptr, false).is_object());
  EXPECT_TRUE(Json::parse(text({{"guided_json", kSchema}}), nullptr, false).is_object());
  EXPECT_EQ(text({{"structured_outputs", {{"regex", "x{3}"}}}}), "xxx");
  EXPECT_EQ(text({{"guided_choice", {"only this"}}}), "only this");
  EXPECT_EQ(text({{"guided_grammar", "start: \"a\" b\nb: \"b\" \"c\"\n"}}), "abc");
  EXPECT_EQ(text({{"ebnf", "root ::= \"a\" b\nb ::= \"b\" \"c\"\n"}}), "abc");
  EXPECT_EQ(text({{"regex", "x{3}"}}), "xxx");
}

TEST(Forms, stop_strings_and_max_tokens_cut_as_ever) {
  ServerFixture fixture;
  const Json regex = {{"guided_regex", "abcdef"}};
  Json body = chat_body("abc", regex);
  body["stop"] = "de";
  EXPECT_EQ(fixture.ask_both(body).text[0], "abc");
  body.erase("stop");
  body["max_tokens"] = 2;
  const Answer cut = fixture.ask_both(body);
  EXPECT_EQ(cut.text[0], "ab");
  EXPECT_EQ(cut.finish[0], "length");
}

TEST(Forms, tools_that_must_be_called_are) {
  ServerFixture fixture(qwen_options());
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"function", {{"name", "run"}}}}}) {
    Json body = chat_body("abc", {{"tools", tools()}, {"tool_choice", choice}, {"parallel_tool_calls", false}});
    const Answer answer = fixture.ask_both(body);
    ASSERT_EQ(answer.status, 200) << answer.error.dump();
    ASSERT_EQ(answer.calls[0].size(), 1u);
    EXPECT_EQ(answer.text[0], "");
    EXPECT_EQ(answer.finish[0], "tool_calls");
    const Json arguments = Json::parse(answer.calls[0][0].arguments);
    const bool run = answer.calls[0][0].name == "run";
    EXPECT_TRUE(run || choice == "required");
    EXPECT_TRUE(!run || (arguments["cmd"].is_string() && arguments["n"].is_number())) << arguments;
  }
  for (const char* parameters : {"{}", R"({"properties":{"a":{"type":"integer"}},"required":["a"]})",
                                 R"({"$ref":"#/$defs/b","$defs":{"b":{"type":"object","required":["a"]}}})"}) {
    Json loose = Json::array({Json{{"type", "function"}, {"function", {{"name", "g"}, {"parameters", Json::parse(parameters)}}}}});
    const Answer answer = fixture.ask_both(
        chat_body("abc", {{"tools", loose}, {"tool_choice", "required"}, {"parallel_tool_calls", false}}));
    ASSERT_EQ(answer.calls[0].size(), 1u) << parameters << answer.text[0] << answer.error;
    const Json arguments = Json::parse(answer.calls[0][0].arguments);
    EXPECT_TRUE(arguments.is_object() && arguments.contains("a") == (std::string(parameters) != "{}")) << arguments;
  }
  Json body = chat_body("abc", {{"tools", tools()}, {"response_format", schema_format(kSchema)}});
  const Answer either = fixture.ask_both(body);
  ASSERT_EQ(either.status, 200) << either.error.dump();
  EXPECT_TRUE(!either.calls[0].empty() || Json::parse(either.text[0], nullptr, false).is_object());
}

TEST(Forms, what_cannot_be_kept_is_refused_by_name) {
  ServerFixture fixture(qwen_options());
  const auto refused = [&](const Json& more, const std::string& param, const std::string& says) {
    const Answer answer = fixture.ask(chat_body("abc", more));
    EXPECT_EQ(answer.status, 400) << more.dump().substr(0, 200);
    EXPECT_EQ(answer.error.value("param", ""), param) << more.dump().substr(0, 200);
    EXPECT_NE(answer.error.value("message", "").find(says), std::string::npos) << answer.error.dump();
  };
  const std::string path = "response_format.json_schema.schema";
  refused({{"response_format", schema_format(R"({"type":"array","uniqueItems":true})")}}, path, "uniqueItems");
  refused({{"response_format", schema_format(R"({"type":"object","properties":{"a":{"not":{}}}})")}}, path, "not");
  refused({{"response_format", schema_format(R"({"type":"object","dependentRequired":{"a":["b"]}})")}}, path,
          "dependentRequired");
  refused({{"response_format", schema_format(R"({"type":"object","properties":{"a":{"minimumm":3}}})")}}, path,
          "\"minimumm\" at /properties/a/minimumm");
  refused({{"guided_json", R"({"minimumm":3})"}}, "guided_json", "no keyword of JSON Schema");
  refused({{"guided_grammar", "start: %json {\"title\": \"\\\"{\", \"minimumm\": 3}\n"}}, "guided_grammar", "minimumm");
  refused({{"response_format", schema_format(R"({"$ref":"https://x.org/y"})")}}, path, "");
  refused({{"guided_regex", "(a"}}, "guided_regex", "");
  refused({{"guided_regex", std::string(400, '(') + std::string(400, ')')}}, "guided_regex", "brackets");
  refused({{"guided_grammar", "root ::= x"}}, "guided_grammar", "no rule 'x'");
  refused({{"guided_grammar", "start: nothing\n"}}, "guided_grammar", "nothing");
  refused({{"guided_grammar", std::string(70000, '#')}}, "guided_grammar", "KiB");
  Json strict = tools();
  strict[0]["function"]["parameters"]["uniqueItems"] = true;
  refused({{"tools", strict}}, "tools", "the parameters of 'run' hold \"uniqueItems\" at /uniqueItems");
  strict[0]["function"]["parameters"].erase("uniqueItems");
  strict[0]["function"]["parameters"]["properties"]["cmd"]["minLenght"] = 1;
  refused({{"tools", strict}}, "tools", "/properties/cmd/minLenght");
  // Of a tool that is not strict, the same is no promise.
  strict[0]["function"]["strict"] = false;
  const Answer answer = fixture.ask(
      chat_body("abc", {{"tools", strict}, {"tool_choice", "required"}, {"parallel_tool_calls", false}}));
  EXPECT_EQ(answer.status, 200) << answer.error.dump();
}

// One function's schema that cannot be kept takes nothing from the others'.
TEST(Forms, only_the_schema_that_cannot_be_kept_is_dropped) {
  ServerFixture fixture(qwen_options());
  Json offered = tools();
  offered[0]["function"]["strict"] = false;
  for (const char* name : {"run", "get_time"}) {
    Json body = chat_body("abc", {{"tools", offered}, {"parallel_tool_calls", false}});
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
    const Answer alone = fixture.ask(body);
    ASSERT_EQ(alone.calls.size(), 1u) << alone.error;
    ASSERT_EQ(alone.calls[0].size(), 1u);
    EXPECT_EQ(Json::parse(alone.calls[0][0].arguments).contains("cmd"), std::string(name) == "run");
  }
  offered.erase(1);
  for (int i = 0; i < 3; ++i) {  // whichever is called, but for the last, keeps its schema
    Json like = offered[0];
    like["function"]["name"] = "run" + std::to_string(i);
    offered.push_back(like);
  }
  offered.push_back(tools()[1]);
  for (int i = 0; i < 5; ++i) {
    const Answer any = fixture.ask(chat_body("abc", {{"tools", offered}, {"tool_choice", "required"}}));
    ASSERT_EQ(any.status, 200) << any.error;
    for (const AnswerCall& call : any.calls[0]) {
      EXPECT_TRUE(call.name == "get_time" || Json::parse(call.arguments).contains("cmd")) << shown(any.calls[0]);
    }
  }
}

// What compiles may still outgrow its bounds on the answer's way.
TEST(Forms, a_grammar_that_grows_too_complex_is_the_fields_fault) {
  ServerFixture fixture(qwen_options());
  // What may follow the first character begins more rules than a parser's row holds.
  std::string grammar = "start: /[!-~]/ s\ns: t0", rules = "t0: A\nA: /[!-~]/";
  for (int i = 1; i < 2200; ++i) {
    const std::string rule = "t" + std::to_string(i);
    grammar += " | " + rule;
    rules += "\n" + rule + ": A";
  }
  const Json body = chat_body("abc", {{"guided_grammar", grammar + "\n" + rules}, {"max_tokens", 200}});
  const Answer answer = fixture.ask(body);
  ASSERT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["code"], "invalid_grammar") << answer.error;
  EXPECT_EQ(answer.error["param"], "guided_grammar");
  EXPECT_EQ(answer.error["message"].get<std::string>().rfind("guided_grammar: ", 0), 0u) << answer.error;
  EXPECT_EQ(answer.error["message"].get<std::string>().find('<'), std::string::npos) << answer.error;
}

TEST(Forms, a_bomb_of_one_client_leaves_the_others_served) {
  ServerFixture fixture;
  std::string chain = "start: a0\n";
  for (int i = 0; i < 5000; ++i) chain += "a" + std::to_string(i) + ":a" + std::to_string(i + 1) + "\n";
  std::thread bomb([&] { fixture.ask(chat_body("abc", {{"guided_grammar", chain + "a5000: \"x\"\n"}})); });
  EXPECT_EQ(fixture.ask_both(chat_body("abc")).text[0], "DEFGGHIJJKK");
  EXPECT_EQ(http_get(fixture.port(), "/health").status, 200);
  bomb.join();
}

}  // namespace
}  // namespace tailrace::test
