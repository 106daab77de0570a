// /v1/messages and /v1/messages/count_tokens through HTTP: blocks, the order of events, stop
// reasons, usage, errors.
#include <gtest/gtest.h>

#include "http/server_fixture.h"
#include "server/reasoning_seal.h"
#include "support/http_client.h"

namespace tailrace::test {
namespace {

FixtureOptions agent_options() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwen;
  options.config.model.reasoning_parser = ReasoningFormat::kQwen3;
  options.scripts = {
      {"call",
       {"They", " ask.", "</think>", "\n\nLooking", ".\n", "<tool_call>",
        "\n{\"name\": \"get_time\", \"argu", "ments\": {\"tz\": \"Eur", "ope/", "Paris\"", "}}\n",
        "</tool_call>\n<tool_call>{\"name\":\"run\",\"arguments\":{}}</tool_call>"}},
      {"plain", {"</thi", "nk>It is ", "noon ", "now."}},
      {"loop", {"hm "}}};
  return options;
}

Json messages_body(const std::string& content, const Json& more = Json::object()) {
  Json body = {{"model", "m"},
               {"max_tokens", 100},
               {"temperature", 0},
               {"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

Json tool(const std::string& name) {
  return {{"name", name},
          {"description", "d"},
          {"input_schema", {{"type", "object"}, {"properties", Json::object()}}}};
}

Json with_tools(const std::string& content, Json more = Json::object()) {
  more["tools"] = Json::array({tool("get_time"), tool("run")});
  return messages_body(content, more);
}

// Events as clients fold them into a message; `fault` names a broken rule of their order.
struct Folded {
  Json message;
  std::string fault;
  std::vector<std::string> names;  // of all events
  Json error;
};

void fold(const Json& event, Folded& out, bool& block_open) {
  const std::string type = event["type"];
  Json& blocks = out.message["content"];
  if (type == "message_start") {
    out.message = event["message"];
    if (!out.message["content"].empty() || !out.message["stop_reason"].is_null())
      out.fault = "message_start says too much";
  } else if (type == "content_block_start") {
    if (block_open || event["index"] != blocks.size()) out.fault = "a block begins out of order";
    block_open = true;
    blocks.push_back(event["content_block"]);
    if (blocks.back()["type"] == "tool_use") blocks.back()["input"] = "";
  } else if (type == "content_block_delta") {
    if (!block_open || event["index"] != blocks.size() - 1) out.fault = "a delta of no open block";
    const Json& delta = event["delta"];
    Json& block = blocks.back();
    const auto add = [&](const char* field, const char* part) {
      block[field] = block[field].get<std::string>() + delta[part].get<std::string>();
    };
    if (delta["type"] == "text_delta") add("text", "text");
    if (delta["type"] == "thinking_delta") add("thinking", "thinking");
    if (delta["type"] == "signature_delta") block["signature"] = delta["signature"];
    if (delta["type"] == "input_json_delta") add("input", "partial_json");
  } else if (type == "content_block_stop") {
    if (!block_open || event["index"] != blocks.size() - 1) out.fault = "a stop of no open block";
    block_open = false;
    if (blocks.back()["type"] == "tool_use")
      blocks.back()["input"] = Json::parse(blocks.back()["input"].get<std::string>());
  } else if (type == "message_delta") {
    if (block_open) out.fault = "message_delta inside a block";
    out.message["stop_reason"] = event["delta"]["stop_reason"];
    out.message["stop_sequence"] = event["delta"]["stop_sequence"];
    out.message["usage"] = event["usage"];
  } else if (type == "error") {
    out.error = event;
  }
}

Folded folded(const std::string& body) {
  Folded out;
  bool block_open = false;
  for (const auto& data : sse_data(body)) {
    const Json event = Json::parse(data);
    out.names.push_back(event["type"]);
    if (body.find("event: " + out.names.back() + "\ndata: " + data) == std::string::npos)
      out.fault = "data without its event's name";
    fold(event, out, block_open);
  }
  const auto& names = out.names;
  const bool whole = names.size() >= 4 && names[0] == "message_start" &&
                     names[names.size() - 2] == "message_delta" && names.back() == "message_stop";
  if (!whole && out.error.is_null()) out.fault = "begin or end is missing";
  return out;
}

// Asks with and without streaming; the message, which is the same.
Json ask_both(const ServerFixture& fixture, Json body) {
  const HttpReply whole = fixture.post("/v1/messages", body);
  EXPECT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  const HttpReply streamed = fixture.post("/v1/messages", body);
  EXPECT_EQ(streamed.status, 200) << streamed.body;
  EXPECT_EQ(streamed.headers.at("content-type"), "text/event-stream");
  Folded answer = folded(streamed.body);
  EXPECT_EQ(answer.fault, "") << streamed.body;
  Json message = Json::parse(whole.body);
  EXPECT_EQ(message["id"].get<std::string>().rfind("msg_", 0), 0u);
  for (Json* json : {&message, &answer.message}) {
    json->erase("id");
    for (Json& block : (*json)["content"]) {
      if (!block.contains("id")) continue;
      EXPECT_EQ(block["id"].get<std::string>().rfind("toolu_", 0), 0u);
      block.erase("id");
    }
  }
  EXPECT_EQ(message, answer.message);
  return message;
}

Json refused(const ServerFixture& fixture, const Json& body, int status = 400,
             const std::string& path = "/v1/messages") {
  const HttpReply reply = fixture.post(path, body);
  EXPECT_EQ(reply.status, status) << body.dump().substr(0, 300) << reply.body.substr(0, 300);
  const Json json = Json::parse(reply.body, nullptr, false);
  EXPECT_EQ(json.value("type", ""), "error") << reply.body.substr(0, 300);
  return json.value("error", Json::object());
}

TEST(Messages, text_with_its_counts) {
  ServerFixture fixture;
  const Json message = ask_both(fixture, messages_body("abc"));
  EXPECT_EQ(message["content"], Json::parse(R"([{"type":"text","text":"DEFGGHIJJKK"}])"));
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["model"], "m");
  EXPECT_EQ(message["stop_reason"], "end_turn");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  EXPECT_EQ(message["usage"]["output_tokens"], 6);
  EXPECT_EQ(message["usage"]["input_tokens"], 1);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 0);
}

TEST(Messages, thinking_text_and_two_calls_in_blocks_of_their_own) {
  ServerFixture fixture(agent_options());
  const Json message = ask_both(fixture, with_tools("call"));
  EXPECT_EQ(message["content"],
            Json::parse(R"([{"type":"thinking","thinking":"They ask.","signature":"tailrace"},
                            {"type":"text","text":"Looking."},
                            {"type":"tool_use","name":"get_time","input":{"tz":"Europe/Paris"}},
                            {"type":"tool_use","name":"run","input":{}}])"));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"]["output_tokens"], 13);
  EXPECT_EQ(message["usage"]["output_tokens_details"]["thinking_tokens"], 3);
}

TEST(Messages, the_second_turn_takes_blocks_back) {
  ServerFixture fixture(agent_options());
  Json body = with_tools("call");
  const Json first = Json::parse(fixture.post("/v1/messages", body).body);
  body["messages"].push_back({{"role", "assistant"}, {"content", first["content"]}});
  const auto result = [&](int block, const char* text) {
    return Json{
        {"type", "tool_result"}, {"tool_use_id", first["content"][block]["id"]}, {"content", text}};
  };
  body["messages"].push_back(
      {{"role", "user"}, {"content", Json::array({result(2, "x"), result(3, "plain")})}});
  const Json second = ask_both(fixture, body);
  EXPECT_EQ(second["content"][0]["text"], "It is noon now.");
  EXPECT_EQ(second["stop_reason"], "end_turn");
}

TEST(Messages, thinking_that_is_not_shown_is_in_its_signature) {
  ServerFixture fixture(agent_options());
  const Json hidden = {{"type", "adaptive"}, {"display", "omitted"}};
  const Json message = ask_both(fixture, messages_body("plain", {{"thinking", hidden}}));
  EXPECT_EQ(message["content"][0]["type"], "text");  // nothing was thought
  const Json thought = ask_both(fixture, with_tools("call", {{"thinking", hidden}}))["content"][0];
  EXPECT_EQ(thought["thinking"], "");
  EXPECT_EQ(open_reasoning(thought["signature"].get<std::string>()), "They ask.");
}

TEST(Messages, stop_sequences_max_tokens_and_the_context_end_an_answer) {
  ServerFixture fixture;
  Json message = ask_both(fixture, messages_body("abc", {{"stop_sequences", {"XX", "IJ"}}}));
  EXPECT_EQ(message["content"][0]["text"], "DEFGGH");
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
  EXPECT_EQ(message["stop_sequence"], "IJ");
  message = ask_both(fixture, messages_body("abc", {{"max_tokens", 2}}));
  EXPECT_EQ(message["content"][0]["text"], "DEFGG");
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  message = ask_both(fixture, messages_body("loop", {{"max_tokens", 100000}}));
  EXPECT_EQ(message["stop_reason"], "model_context_window_exceeded");
  EXPECT_EQ(message["usage"]["output_tokens"], 511);
}

TEST(Messages, one_call_where_no_more_are_wanted_and_none) {
  ServerFixture fixture(agent_options());
  Json message = ask_both(
      fixture, with_tools("call", {{"tool_choice",
                                    {{"type", "auto"}, {"disable_parallel_tool_use", true}}}}));
  EXPECT_EQ(message["content"].size(), 3u);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  message = ask_both(fixture, with_tools("call", {{"tool_choice", {{"type", "none"}}}}));
  EXPECT_EQ(message["content"].size(), 2u);
  EXPECT_EQ(message["stop_reason"], "end_turn");
}

TEST(Messages, a_call_that_must_come_does) {
  FixtureOptions options = agent_options();
  options.config.model.reasoning_parser = ReasoningFormat::kNone;
  ServerFixture fixture(options);
  for (const Json& choice : {Json{{"type", "any"}}, Json{{"type", "tool"}, {"name", "run"}}}) {
    Json wanted = choice;
    wanted["disable_parallel_tool_use"] = true;
    const Json message =
        ask_both(fixture, with_tools("plain", {{"tool_choice", wanted}, {"max_tokens", 400}}));
    ASSERT_EQ(message["content"].size(), 1u) << message;
    EXPECT_EQ(message["content"][0]["type"], "tool_use");
    EXPECT_TRUE(!choice.contains("name") || message["content"][0]["name"] == "run") << message;
    EXPECT_EQ(message["stop_reason"], "tool_use");
  }
}

TEST(Messages, a_format_is_kept) {
  ServerFixture fixture;
  const Json format = Json::parse(
      R"({"type":"json_schema","schema":{"type":"object","properties":{"n":{"type":"integer"}},
                                     "required":["n"],"additionalProperties":false}})");
  for (const Json& more :
       {Json{{"output_config", {{"format", format}}}}, Json{{"output_format", format}}}) {
    const Json message = ask_both(fixture, messages_body("abc", more));
    const Json json = Json::parse(message["content"][0]["text"].get<std::string>(), nullptr, false);
    EXPECT_TRUE(json.is_object() && json["n"].is_number_integer()) << message;
  }
}

// The script would go on thinking for ever.
TEST(Messages, a_thinking_budget_ends_the_reasoning) {
  FixtureOptions options = agent_options();
  options.context_length = 4096;
  ServerFixture fixture(options);
  const Json on = {{"type", "enabled"}, {"budget_tokens", 1024}};
  const Json message =
      ask_both(fixture, messages_body("loop", {{"thinking", on}, {"max_tokens", 3000}}));
  EXPECT_EQ(message["usage"]["output_tokens_details"]["thinking_tokens"], 1025);
  EXPECT_EQ(message["content"][0]["thinking"].get<std::string>().size(), 1024 * 3);
  EXPECT_EQ(message["content"][1]["text"].get<std::string>().rfind("Looking.", 0), 0u) << message;
  const Json in_time =
      ask_both(fixture, messages_body("plain", {{"thinking", on}, {"max_tokens", 3000}}));
  EXPECT_EQ(in_time["content"][0]["text"], "It is noon now.");
}

// Where the template has no levels an effort is a bound, which a model that does not think keeps to as well.
TEST(Messages, low_effort_bounds_thinking) {
  FixtureOptions options = agent_options();
  options.context_length = 8192;
  ServerFixture thinks(options), plain;
  const auto thought = [&](const char* effort, Json thinking) {
    Json body = messages_body("loop", {{"output_config", {{"effort", effort}}}, {"max_tokens", 5000}});
    if (!thinking.is_null()) body["thinking"] = std::move(thinking);
    return ask_both(thinks, body)["usage"]["output_tokens_details"]["thinking_tokens"].get<int>();
  };
  EXPECT_EQ(thought("low", nullptr), 1025);
  EXPECT_EQ(thought("medium", nullptr), 4097);
  EXPECT_EQ(thought("max", nullptr), 5000);
  EXPECT_EQ(thought("medium", {{"type", "enabled"}, {"budget_tokens", 2000}}), 2001);
  EXPECT_EQ(thought("low", {{"type", "enabled"}, {"budget_tokens", 2000}}), 1025);
  for (const char* effort : {"low", "medium", "high", "xhigh", "max"}) {  // as Claude Code sends it
    Json body = messages_body("abc", {{"output_config", {{"effort", effort}}}, {"thinking", {{"type", "adaptive"}}}});
    EXPECT_EQ(ask_both(plain, body)["stop_reason"], "end_turn") << effort;
  }
}

TEST(Messages, thinking_that_the_model_cannot_do_is_refused) {
  ServerFixture thinks(agent_options()), plain;  // the template has no switch
  const auto param = [](const ServerFixture& fixture, const Json& more) {
    return refused(fixture, messages_body("abc", more))["message"].get<std::string>();
  };
  EXPECT_EQ(param(thinks, {{"thinking", {{"type", "disabled"}}}}),
            "thinking.type 'disabled': this model always thinks");
  EXPECT_EQ(param(plain, {{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
                          {"max_tokens", 2000}}),
            "thinking.type 'enabled': this model does not think");
  EXPECT_EQ(
      ask_both(plain, messages_body("abc", {{"thinking", {{"type", "disabled"}}}}))["stop_reason"],
      "end_turn");
}

TEST(Messages, tokens_are_counted_as_they_are_prompted) {
  ServerFixture fixture(agent_options());
  Json body = messages_body("hello");
  const Json prompted = ask_both(fixture, body);
  for (const char* generating : {"max_tokens", "temperature"}) body.erase(generating);
  const HttpReply reply = fixture.post("/v1/messages/count_tokens", body);
  EXPECT_EQ(reply.body, R"({"input_tokens":5})");
  EXPECT_EQ(prompted["usage"]["input_tokens"], 5);
  body["max_tokens"] = 5;
  EXPECT_EQ(refused(fixture, body, 400, "/v1/messages/count_tokens")["message"],
            "max_tokens is not a field this server knows");
}

TEST(Messages, what_a_coding_agent_sends) {
  ServerFixture fixture(agent_options());
  const Json cached = {{"type", "ephemeral"}};
  Json body = with_tools("plain", Json::parse(R"({
      "stream": true, "metadata": {"user_id": "user_1"}, "thinking": {"type": "adaptive"},
      "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
      "output_config": {"effort": "high"}})"));
  body["system"] =
      Json::array({{{"type", "text"}, {"text", "You are an agent."}, {"cache_control", cached}},
                   {{"type", "text"}, {"text", "Be brief."}, {"cache_control", cached}}});
  body["tools"][0]["cache_control"] = cached;
  body["tools"][1]["eager_input_streaming"] = true;
  body["messages"][0]["content"] =
      Json::array({{{"type", "text"}, {"text", "plain"}, {"cache_control", cached}}});
  const HttpReply reply = http_post(
      fixture.port(), "/v1/messages?beta=true", body.dump(),
      "anthropic-version: 2023-06-01\r\nanthropic-beta: claude-code-20250219,unheard-of\r\n"
      "X-Api-Key: anything\r\n");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(folded(reply.body).message["content"][0]["text"], "It is noon now.");
}

// An answer of seconds, of which some has come.
bool begins_to_stream(HttpConnection& client, ServerFixture& fixture) {
  fixture.engine.step_us = 5000;
  const Json body = messages_body("loop", {{"stream", true}, {"max_tokens", 500}});
  return client.send_request("POST", "/v1/messages", body.dump()) &&
         client.read_until("text_delta");
}

TEST(Messages, leaving_cancels) {
  ServerFixture fixture;
  {
    HttpConnection client(fixture.port());
    ASSERT_TRUE(begins_to_stream(client, fixture));
  }
  EXPECT_TRUE(ServerFixture::eventually(
      [&] { return fixture.engine.num_cancelled == 1 && fixture.engine.num_open() == 0; }));
}

TEST(Messages, errors_have_the_dialects_form) {
  FixtureOptions options;
  options.config.http.api_keys = {"secret"};
  ServerFixture fixture(options);
  const std::string body = messages_body("abc").dump();
  const auto error = [&](const HttpReply& reply) {
    return Json::parse(reply.body, nullptr, false)["error"].value("type", "");
  };
  EXPECT_EQ(error(http_post(fixture.port(), "/v1/messages", body)), "authentication_error");
  EXPECT_EQ(error(http_post(fixture.port(), "/v1/messages", body, "X-Api-Key: wrong\r\n")),
            "authentication_error");
  EXPECT_EQ(http_post(fixture.port(), "/v1/messages", body, "X-Api-Key: secret\r\n").status, 200);
  EXPECT_EQ(
      http_post(fixture.port(), "/v1/messages", body, "Authorization: Bearer secret\r\n").status,
      200);
  const std::string key = "X-Api-Key: secret\r\n";
  EXPECT_EQ(error(http_get(fixture.port(), "/v1/messages", key)), "invalid_request_error");
  EXPECT_EQ(error(http_post(fixture.port(), "/v1/messages",
                            messages_body("abc", {{"model", "other"}}).dump(), key)),
            "not_found_error");
  EXPECT_EQ(error(http_post(fixture.port(), "/v1/messages", "{", key)), "invalid_request_error");
  const HttpReply named = http_post(fixture.port(), "/v1/messages", "{", key + "X-Request-Id: mine\r\n");
  EXPECT_EQ(named.headers.at("request-id"), "mine");
  EXPECT_EQ(Json::parse(named.body)["request_id"], "mine");
  fixture.engine.fail_all = true;
  EXPECT_EQ(error(http_post(fixture.port(), "/v1/messages", body, key)), "api_error");
}

TEST(Messages, an_error_in_a_stream_is_an_event) {
  ServerFixture fixture;
  HttpConnection client(fixture.port());
  ASSERT_TRUE(begins_to_stream(client, fixture));
  fixture.engine.fail_all = true;
  const Folded answer = folded(client.read_reply().body);
  EXPECT_EQ(answer.names.back(), "error");
  EXPECT_EQ(answer.error["error"]["type"], "api_error");
}

TEST(Messages, a_conversation_without_a_word_is_refused) {
  ServerFixture fixture(agent_options());
  const Json body = {{"model", "m"}, {"max_tokens", 2}, {"messages", Json::parse(R"([{"role":"system","content":""}])")}};
  EXPECT_EQ(refused(fixture, body)["type"], "invalid_request_error");
  const Json counted = {{"model", "m"}, {"messages", body["messages"]}};
  EXPECT_EQ(refused(fixture, counted, 400, "/v1/messages/count_tokens")["type"], "invalid_request_error");
}

TEST(Messages, a_body_that_is_too_large_is_refused_in_the_dialects_form) {
  FixtureOptions options;
  options.config.http.max_body_bytes = 1000;
  ServerFixture fixture(options);
  EXPECT_EQ(refused(fixture, messages_body(std::string(2000, 'x')), 413)["type"],
            "request_too_large");
}

}  // namespace
}  // namespace tailrace::test
