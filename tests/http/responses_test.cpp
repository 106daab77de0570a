// POST /v1/responses: what is accepted, the order of events, the same answer streamed or not.
#include "http/server_fixture.h"

namespace tailrace::test {
namespace {

constexpr const char* kPath = "/v1/responses";

Json tool(const std::string& name, const Json& properties = Json::object()) {
  return {{"type", "function"}, {"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}};
}

Json ask(const std::string& input, Json more = Json::object()) {
  more["input"] = input;
  if (!more.contains("temperature")) more["temperature"] = 0;
  return more;
}

// Qwen's reasoning and calls.
FixtureOptions agent() {
  FixtureOptions options;
  options.config.model.tool_call_parser = ToolFormat::kQwen;
  options.config.model.reasoning_parser = ReasoningFormat::kQwen3;
  options.scripts = {{"think", {"Let ", "me see.\n", "</think>", "\n\nIt is ", "noon", "!"}},
                     {"call",
                      {"Hm.", "\n</think>", "Sure", ".\n", "<tool_call>", "\n{\"name\": \"get_time\", \"argu",
                       "ments\": {\"tz\": \"Eur", "ope/", "Paris\"", "}}\n", "</tool_call>"}},
                     {"calls",
                      {"</think>\n", "<tool_", "call>{\"name\":\"run\",\"arguments\":{\"cmd\":\"a\"}}", "</tool_",
                       "call>\n<tool_ca", "ll>{\"name\":\"run\",\"arguments\":{\"cmd\":\"b\"}}</tool_call> "}}};
  return options;
}

struct Event {
  std::string name;
  Json data;
};

std::vector<Event> events_of(const std::string& body) {
  std::vector<Event> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string block = body.substr(at, end - at);
    at = end == std::string::npos ? body.size() : end + 2;
    if (block.starts_with(":")) continue;
    const size_t line = block.find("\ndata: ");
    EXPECT_TRUE(block.starts_with("event: ") && line != std::string::npos) << block;
    out.push_back({block.substr(7, line - 7), Json::parse(block.substr(line + 7))});
    EXPECT_EQ(out.back().data["type"], out.back().name);
    EXPECT_EQ(out.back().data["sequence_number"], out.size() - 1);
  }
  return out;
}

std::vector<std::string> names_of(const std::vector<Event>& events) {
  std::vector<std::string> out;
  for (const Event& event : events) {
    const std::string name = event.name.substr(std::string("response.").size());
    if (out.empty() || out.back() != name) out.push_back(name);  // deltas in a row count once
  }
  return out;
}

// What differs between two answers to the same request.
Json settled(Json response) {
  for (const char* name : {"id", "created_at", "completed_at", "timings"}) response.erase(name);
  if (response.contains("usage") && response["usage"].is_object()) response["usage"].erase("input_tokens_details");
  for (Json& item : response["output"]) {
    item.erase("id");
    if (item.contains("call_id")) item["call_id"] = "";
  }
  return response;
}

// The response, asked for both ways; fails where the two differ, and where events do not add up to it.
Json respond(const ServerFixture& fixture, Json body, std::vector<Event>* events_out = nullptr) {
  const HttpReply plain = fixture.post(kPath, body);
  EXPECT_EQ(plain.status, 200) << plain.body;
  const Json whole = Json::parse(plain.body);
  body["stream"] = true;
  const HttpReply streamed = fixture.post(kPath, body);
  EXPECT_EQ(streamed.status, 200) << streamed.body;
  const auto events = events_of(streamed.body);
  const Json last = events.back().data["response"];
  EXPECT_EQ(settled(whole), settled(last));
  std::vector<std::string> texts;
  for (const Event& event : events) {
    if (event.name == "response.output_item.added") texts.emplace_back();
    if (event.data.contains("delta")) texts.at(event.data["output_index"]) += event.data["delta"].get<std::string>();
  }
  EXPECT_EQ(texts.size(), whole["output"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Json& item = whole["output"][i];
    EXPECT_EQ(texts[i], item["type"] == "function_call" ? item["arguments"] : item["content"][0]["text"]);
  }
  if (events_out != nullptr) *events_out = events;
  return whole;
}

std::string refused(const ServerFixture& fixture, const Json& body, int status = 400) {
  const HttpReply reply = fixture.post(kPath, body);
  EXPECT_EQ(reply.status, status) << body.dump() << reply.body;
  const Json error = Json::parse(reply.body)["error"];
  return error["param"].is_null() ? "" : error["param"].get<std::string>();
}

TEST(Responses, a_text) {
  ServerFixture fixture;
  std::vector<Event> events;
  const Json response = respond(fixture, ask("abc", {{"metadata", {{"k", "v"}}}, {"user", "u"}}), &events);
  EXPECT_EQ(names_of(events), (std::vector<std::string>{"created", "in_progress", "output_item.added",
                                                        "content_part.added", "output_text.delta", "output_text.done",
                                                        "content_part.done", "output_item.done", "completed"}));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["error"], nullptr);
  EXPECT_EQ(response["incomplete_details"], nullptr);
  EXPECT_EQ(response["metadata"], (Json{{"k", "v"}}));
  EXPECT_EQ(response["user"], "u");
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_EQ(response["text"]["format"]["type"], "text");
  EXPECT_EQ(response["temperature"], 0);
  ASSERT_EQ(response["output"].size(), 1u);
  const Json& item = response["output"][0];
  EXPECT_EQ(item["type"], "message");
  EXPECT_EQ(item["role"], "assistant");
  EXPECT_EQ(item["status"], "completed");
  EXPECT_EQ(item["content"][0], (Json{{"type", "output_text"},
                                      {"text", "DEFGGHIJJKK"},
                                      {"annotations", Json::array()},
                                      {"logprobs", Json::array()}}));
  const Json chat = Json::parse(fixture.post("/v1/chat/completions", chat_body("abc")).body);
  EXPECT_EQ(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(response["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
}

TEST(Responses, reasoning_before_a_message) {
  ServerFixture fixture(agent());
  std::vector<Event> events;
  const Json response =
      respond(fixture, ask("think", {{"include", Json::array({"reasoning.encrypted_content"})}}), &events);
  EXPECT_EQ(names_of(events), (std::vector<std::string>{
                                  "created", "in_progress", "output_item.added", "content_part.added",
                                  "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                                  "output_item.done", "output_item.added", "content_part.added", "output_text.delta",
                                  "output_text.done", "content_part.done", "output_item.done", "completed"}));
  ASSERT_EQ(response["output"].size(), 2u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["summary"], Json::array());
  EXPECT_EQ(response["output"][0]["content"][0], (Json{{"type", "reasoning_text"}, {"text", "Let me see."}}));
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "It is noon!");
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_EQ(response["usage"]["output_tokens"], 7);
}

TEST(Responses, a_call_behind_reasoning_and_text) {
  ServerFixture fixture(agent());
  const Json tools = Json::array({tool("get_time", {{"tz", {{"type", "string"}}}})});
  std::vector<Event> events;
  const Json response = respond(fixture, ask("call", {{"tools", tools}}), &events);
  ASSERT_EQ(response["output"].size(), 3u);
  const Json& call = response["output"][2];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "get_time");
  EXPECT_EQ(call["arguments"], R"({"tz":"Europe/Paris"})");
  EXPECT_EQ(call["status"], "completed");
  EXPECT_EQ(call["call_id"].get<std::string>().size(), 9u);
  EXPECT_EQ(response["tools"], tools);
  const auto names = names_of(events);
  EXPECT_EQ((std::vector<std::string>(names.end() - 5, names.end())),
            (std::vector<std::string>{"output_item.added", "function_call_arguments.delta",
                                      "function_call_arguments.done", "output_item.done", "completed"}));
}

TEST(Responses, calls_are_items_of_their_own_and_may_be_bounded_to_one) {
  ServerFixture fixture(agent());
  Json body = ask("calls", {{"tools", Json::array({tool("run")})}});
  const Json two = respond(fixture, body);
  ASSERT_EQ(two["output"].size(), 2u);
  EXPECT_EQ(two["output"][0]["arguments"], R"({"cmd":"a"})");
  EXPECT_EQ(two["output"][1]["arguments"], R"({"cmd":"b"})");
  body["parallel_tool_calls"] = false;
  EXPECT_EQ(respond(fixture, body)["output"].size(), 1u);
  body["tool_choice"] = "none";
  EXPECT_EQ(respond(fixture, body)["output"][0]["type"], "message");
}

TEST(Responses, functions_of_a_namespace_are_called_by_both_names) {
  FixtureOptions options = agent();
  options.scripts = {options.scripts.back(), {"spaced", {"</think>", "<tool_call>{\"name\":\"agents__", "close\"",
                                                         ",\"arguments\":{\"id\":\"a\"}}", "</tool_call>"}}};
  ServerFixture fixture(options);
  const Json space = {{"type", "namespace"}, {"name", "agents"}, {"description", "Helpers."},
                      {"tools", Json::array({tool("open"), tool("close")})}};
  const Json tools = Json::array({tool("close"), space});
  std::vector<Event> events;
  const Json response = respond(fixture, ask("spaced", {{"tools", tools}}), &events);
  EXPECT_EQ(response["tools"], tools);
  const Json& call = response["output"][0];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "close");
  EXPECT_EQ(call["namespace"], "agents");
  EXPECT_EQ(call["arguments"], R"({"id":"a"})");
  for (const Event& event : events) {
    if (event.name == "response.function_call_arguments.done") EXPECT_EQ(event.data["name"], "close");
  }
  Json plain = respond(fixture, ask("calls", {{"tools", Json::array({tool("run"), space})}}))["output"][0];
  EXPECT_FALSE(plain.contains("namespace"));
}

TEST(Responses, faults_of_namespaces_name_their_path) {
  ServerFixture fixture(agent());
  const auto fault = [&](Json space, Json other = tool("f")) {
    space.update({{"type", "namespace"}});
    return refused(fixture, ask("think", {{"tools", Json::array({std::move(other), std::move(space)})}}));
  };
  EXPECT_EQ(fault({{"tools", Json::array()}}), "tools[1].name");
  EXPECT_EQ(fault({{"name", "n"}}), "tools[1].tools");
  EXPECT_EQ(fault({{"name", "n"}, {"tools", Json::array({1})}}), "tools[1].tools[0]");
  const Json custom = {{"type", "custom"}, {"name", "c"}};
  EXPECT_EQ(fault({{"name", "n"}, {"tools", Json::array({custom})}}), "tools[1].tools[0].type");
  EXPECT_EQ(fault({{"name", "n"}, {"tools", Json::array({tool("a b")})}}), "tools[1].tools[0].name");
  EXPECT_EQ(fault({{"name", "n"}, {"tools", Json::array({tool("f")})}}, tool("n__f")), "tools[1].tools[0].name");
  EXPECT_EQ(fault({{"name", "n"}, {"weight", 1}, {"tools", Json::array()}}), "tools[1].weight");
}

// As Codex 0.171 asks, in short.
TEST(Responses, what_a_coding_agent_sends) {
  ServerFixture fixture(agent());
  const Json body = Json::parse(R"({"model": null, "stream": true, "tool_choice": "auto", "parallel_tool_calls": true,
      "reasoning": {"summary": "auto"}, "store": false, "include": ["reasoning.encrypted_content"],
      "prompt_cache_key": "k", "client_metadata": {"x-installation-id": "i"}, "temperature": 0,
      "tools": [{"type": "function", "name": "get_time", "description": "d", "strict": false,
                 "parameters": {"type": "object", "properties": {"tz": {"type": "string"}},
                                "additionalProperties": false}},
                {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [
                  {"type": "function", "name": "close", "description": "d", "strict": false,
                   "parameters": {"type": "object", "properties": {}}}]}],
      "input": [
        {"type": "message", "id": "msg_1", "role": "developer",
         "content": [{"type": "input_text", "text": "You are."}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "<context/>"}]},
        {"type": "message", "status": "completed", "id": "msg_3", "role": "assistant",
         "content": [{"type": "output_text", "text": "Looking.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "status": "completed", "id": "fc_1", "name": "close", "namespace": "agents",
         "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "closed"},
        {"type": "message", "id": "msg_4", "role": "user", "content": [{"type": "input_text", "text": "call"}]}]})");
  const HttpReply reply = fixture.post(kPath, body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json response = events_of(reply.body).back().data["response"];
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][2]["name"], "get_time");
}

TEST(Responses, max_output_tokens_makes_it_incomplete) {
  ServerFixture fixture(agent());
  std::vector<Event> events;
  Json response = respond(fixture, ask("think", {{"max_output_tokens", 2}}), &events);
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(events.back().name, "response.incomplete");
  response = respond(fixture, ask("call", {{"max_output_tokens", 8}, {"tools", Json::array({tool("get_time")})}}));
  EXPECT_EQ(response["output"][2]["arguments"], R"({"tz":"Europe/"})");
  EXPECT_EQ(response["output"][2]["status"], "incomplete");
}

TEST(Responses, log_probabilities_are_of_the_message_alone) {
  ServerFixture fixture(agent());
  const Json response =
      respond(fixture, ask("think", {{"include", Json::array({"message.output_text.logprobs"})}, {"top_logprobs", 1}}));
  const Json& logprobs = response["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3u);
  EXPECT_EQ(logprobs[2]["token"], "!");
  EXPECT_EQ(logprobs[2]["bytes"], Json::array({33}));
  EXPECT_EQ(logprobs[2]["top_logprobs"].size(), 1u);
}

TEST(Responses, what_cannot_be_done_is_refused_by_name) {
  ServerFixture fixture(agent());
  const std::vector<std::pair<std::string, Json>> fields = {
      {"background", true},
      {"conversation", "c"},
      {"prompt", {{"id", "p"}}},
      {"truncation", "auto"},
      {"service_tier", "flex"},
      {"context_management", Json::array({{{"type", "compaction"}}})},
      {"stop", "x"},
      {"n", 2},
      {"top_logprobs", 2},
      {"max_output_tokens", 0},
      {"temperature", 3},
      {"store", "yes"},
      {"tool_choice", "required"},
      {"stream_options", Json::object()},
      {"tools", 1},
      {"instructions", 1},
      {"text", "json"},
      {"reasoning", "high"},
      {"moderation", Json::object()}};
  for (const auto& [name, value] : fields) EXPECT_EQ(refused(fixture, ask("think", {{name, value}})), name);
  EXPECT_EQ(refused(fixture, ask("think", {{"metadata", {{"k", 1}}}})), "metadata.k");
  EXPECT_EQ(refused(fixture, ask("think", {{"include", Json::array({"nothing"})}})), "include[0]");
  EXPECT_EQ(refused(fixture, ask("think", {{"include", Json::array({"reasoning.encrypted_content", 5})}})), "include[1]");
  const auto tools = [](const Json& entry) { return ask("think", {{"tools", Json::array({entry})}}); };
  EXPECT_EQ(refused(fixture, tools({{"type", "web_search"}})), "tools[0].type");
  EXPECT_EQ(refused(fixture, tools({{"type", "local_shell"}})), "tools[0].type");
  EXPECT_EQ(refused(fixture, tools({{"type", "custom"}, {"name", "apply_patch"}})), "tools[0].type");
  EXPECT_EQ(refused(fixture, tools({{"type", "function"}, {"name", "no spaces"}})), "tools[0].name");
  EXPECT_EQ(refused(fixture, ask("think", {{"text", {{"verbosity", "high"}}}})), "text.verbosity");
  EXPECT_EQ(refused(fixture, ask("think", {{"text", {{"format", {{"type", "grammar"}}}}}})), "text.format.type");
  EXPECT_EQ(refused(fixture, ask("think", {{"text", {{"format", {{"type", "json_schema"}, {"name", "n"}}}}}})),
            "text.format.schema");
  EXPECT_EQ(refused(fixture, ask("think", {{"reasoning", {{"effort", "very"}}}})), "reasoning.effort");
  EXPECT_EQ(refused(fixture, ask("think", {{"reasoning", {{"effort", "low"}}}})), "reasoning.effort");
  EXPECT_EQ(refused(fixture, ask("think", {{"reasoning", {{"summary", "detailed"}}}})), "reasoning.summary");
  EXPECT_EQ(refused(fixture, ask("think", {{"tools", Json::array({tool("run")})},
                                           {"tool_choice", {{"type", "function"}, {"name", "go"}}}})),
            "tool_choice.name");
  Json allowed = {{"type", "allowed_tools"}, {"mode", "required"}, {"tools", {{{"type", "function"}, {"name", "go"}}}}};
  const Json tools_of_two = Json::array({tool("run"), tool("stop")});
  EXPECT_EQ(refused(fixture, ask("think", {{"tools", tools_of_two}, {"tool_choice", allowed}})), "tool_choice.tools[0].name");
  EXPECT_EQ(refused(fixture, ask("think", {{"model", "other"}}), 404), "model");
  for (const Json& nothing : {Json(), Json(""), Json::array()}) {
    EXPECT_EQ(refused(fixture, {{"instructions", "x"}, {"input", nothing}}), "input");
  }
  EXPECT_EQ(refused(fixture, ask(std::string(600, 'x'))), "input");
}

TEST(Responses, items_that_cannot_be_read_are_refused_by_path) {
  ServerFixture fixture(agent());
  EXPECT_EQ(
      refused(fixture,
              {{"input", Json::parse(R"([{"role":"user","content":"think"},{"type":"item_reference","id":"x"}])")}}),
      "input[1].type");
  EXPECT_EQ(refused(fixture, {{"input", Json::parse(R"([{"type":"reasoning"}])")}}), "input");
}

}  // namespace
}  // namespace tailrace::test
