#include "server/anthropic_request.h"

#include <gtest/gtest.h>

#include "server/anthropic_content.h"
#include "server/reasoning_seal.h"

namespace tailrace {
namespace {

Json body_with(const std::string& more = "{}") {
  Json body =
      Json::parse(R"({"model":"m","max_tokens":2000,"messages":[{"role":"user","content":"hi"}]})");
  body.update(Json::parse(more));
  return body;
}

std::string param_of_fault(const Json& body) {
  const auto request = parse_messages_request(body.dump());
  return request ? "none" : request.error().param;
}

Json converted(const std::string& messages, const char* system = nullptr) {
  const Json prompt = system == nullptr ? Json() : Json::parse(system);
  const auto out =
      messages_from_anthropic(system == nullptr ? nullptr : &prompt, Json::parse(messages));
  return out ? *out : Json{{"fault", out.error().message}};
}

TEST(AnthropicRequest, fields_become_those_of_a_chat) {
  const auto request = parse_messages_request(
      body_with(
          R"({"stream":true,"temperature":0.5,"top_p":0.9,"top_k":7,"stop_sequences":["a","b"],
                    "metadata":{"user_id":"u"},"service_tier":"auto","speed":"standard",
                    "cache_control":{"type":"ephemeral"},
                    "thinking":{"type":"enabled","budget_tokens":1500,"display":"summarized"},
                    "output_config":{"effort":"max"}})")
          .dump());
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const GenerationParams& params = request->chat.params;
  EXPECT_TRUE(params.stream && params.end_with_context);
  EXPECT_EQ(params.max_tokens, 2000);
  EXPECT_EQ(params.temperature, 0.5f);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_EQ(params.top_k, 7);
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request->thinking, MessagesRequest::Thinking::kOn);
  EXPECT_EQ(request->chat.thinking_budget, 1500);
  EXPECT_EQ(request->effort, "max");
}

TEST(AnthropicRequest, tools_and_the_choice_among_them) {
  const std::string tools = R"("tools":[{"name":"f","input_schema":{"type":"object"},"strict":true},
      {"type":"custom","name":"g","description":"d","input_schema":{},"cache_control":{"type":"ephemeral"},
       "defer_loading":false,"allowed_callers":["direct"],"input_examples":[]}])";
  const auto read = [&](const std::string& choice) {
    const auto request = parse_messages_request(body_with("{" + tools + choice + "}").dump());
    EXPECT_TRUE(request.has_value()) << request.error().message;
    return request->chat.tools;
  };
  ToolParams out = read("");
  EXPECT_EQ(
      out.offered,
      Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
      {"type":"function","function":{"name":"g","description":"d","parameters":{}}}])"));
  EXPECT_EQ(out.strict, (std::set<std::string>{"f"}));
  EXPECT_TRUE(!out.required && out.parallel_calls);
  out = read(R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})");
  EXPECT_TRUE(out.required && out.forced.empty() && !out.parallel_calls);
  out = read(R"(,"tool_choice":{"type":"tool","name":"g"})");
  EXPECT_TRUE(out.required && out.forced == "g" && out.parallel_calls);
  out = read(R"(,"tool_choice":{"type":"none"})");
  EXPECT_TRUE(out.offered.empty() && out.strict.empty() && !out.required);
}

TEST(AnthropicRequest, what_is_refused_is_named) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_tokens":null})", "max_tokens"},
      {R"({"max_tokens":0})", "max_tokens"},
      {R"({"model":null})", "model"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"temperature":1.5})", "temperature"},
      {R"({"top_p":0})", "top_p"},
      {R"({"top_k":-1})", "top_k"},
      {R"({"stop_sequences":"a"})", "stop_sequences"},
      {R"({"stop_sequences":[""]})", "stop_sequences"},
      {R"({"n":1})", "n"},
      {R"({"service_tier":"priority"})", "service_tier"},
      {R"({"speed":"fast"})", "speed"},
      {R"({"container":"c"})", "container"},
      {R"({"inference_geo":"eu"})", "inference_geo"},
      {R"({"diagnostics":{"previous_message_id":"x"}})", "diagnostics"},
      {R"({"mcp_servers":[{"url":"x"}]})", "mcp_servers"},
      {R"({"metadata":"x"})", "metadata"},
      {R"({"thinking":{"type":"between_tools"}})", "thinking.type"},
      {R"({"thinking":{"type":"enabled"}})", "thinking.budget_tokens"},
      {R"({"thinking":{"type":"enabled","budget_tokens":1000}})", "thinking.budget_tokens"},
      {R"({"thinking":{"type":"enabled","budget_tokens":2000}})", "thinking.budget_tokens"},
      {R"({"thinking":{"type":"adaptive","budget_tokens":1024}})", "thinking.budget_tokens"},
      {R"({"thinking":{"type":"adaptive","display":"none"}})", "thinking.display"},
      {R"({"output_config":{"effort":"most"}})", "output_config.effort"},
      {R"({"output_config":{"format":{"type":"json_object"}}})", "output_config.format.type"},
      {R"({"output_format":{"type":"json_schema","schema":7}})", "output_format.schema"},
      {R"({"output_config":{"task_budget":{}}})", "output_config.task_budget"},
      {R"({"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}})",
       "context_management.edits[0]"},
      {R"({"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}})",
       "context_management.edits[0]"},
      {R"({"tools":[{"type":"web_search_20250305","name":"web_search"}]})", "tools[0].type"},
      {R"({"tools":[{"type":"bash_20250124","name":"bash"}]})", "tools[0].type"},
      {R"({"tools":[{"name":"a b","input_schema":{}}]})", "tools[0].name"},
      {R"({"tools":[{"name":"f"}]})", "tools[0].input_schema"},
      {R"({"tools":[{"name":"f","input_schema":{},"defer_loading":true}]})",
       "tools[0].defer_loading"},
      {R"({"tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}]})",
       "tools[1].name"},
      {R"({"tool_choice":{"type":"any"}})", "tool_choice.type"},
      {R"({"tool_choice":{"type":"tool","name":"f"}})", "tool_choice.name"},
      {R"({"tool_choice":{"type":"none","disable_parallel_tool_use":true}})",
       "tool_choice.disable_parallel_tool_use"},
      {R"({"tool_choice":"auto"})", "tool_choice"},
      {R"({"system":[{"type":"image","source":{}}]})", "system[0].type"},
      {R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
       "messages"},
  };
  for (const auto& [more, param] : cases) EXPECT_EQ(param_of_fault(body_with(more)), param) << more;
}

TEST(AnthropicRequest, blocks_that_are_not_served_are_named) {
  const auto fault = [](const std::string& role, const std::string& block) {
    const auto out = messages_from_anthropic(
        nullptr, Json::parse(R"([{"role":")" + role + R"(","content":[)" + block + "]}]"));
    return out ? "none" : out.error().param;
  };
  for (const char* type :
       {"image", "document", "search_result", "container_upload", "thinking", "tool_use"}) {
    EXPECT_EQ(fault("user", R"({"type":")" + std::string(type) + R"("})"),
              "messages[0].content[0].type");
  }
  for (const char* type : {"redacted_thinking", "server_tool_use", "web_search_tool_result",
                           "mcp_tool_use", "tool_result"}) {
    EXPECT_EQ(fault("assistant", R"({"type":")" + std::string(type) + R"("})"),
              "messages[0].content[0].type");
  }
  EXPECT_EQ(fault("user", R"({"type":"text"})"), "messages[0].content[0].text");
  EXPECT_EQ(fault("user", R"({"type":"text","text":"a","citations":[{}]})"),
            "messages[0].content[0].citations");
  EXPECT_EQ(fault("user", R"({"type":"tool_result","tool_use_id":"x"})"),
            "messages[0].content[0].tool_use_id");
  EXPECT_EQ(fault("assistant", R"({"type":"tool_use","id":"x","name":"f","input":"{}"})"),
            "messages[0].content[0].input");
  EXPECT_EQ(fault("assistant",
                  R"({"type":"tool_use","id":"x","name":"f","input":{},"caller":{"type":"code"}})"),
            "messages[0].content[0].caller");
}

TEST(AnthropicRequest, a_conversation_with_everything_becomes_chat_messages) {
  EXPECT_EQ(
      converted(
          R"([
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"user","content":"c"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"of another server"},
        {"type":"text","text":"d"},{"type":"text","text":"e"},
        {"type":"tool_use","id":"1","name":"f","input":{"x":[1]},"caller":{"type":"direct"}},
        {"type":"tool_use","id":"2","name":"g","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"r"}]},
        {"type":"tool_result","tool_use_id":"1","content":"lost","is_error":true},
        {"type":"text","text":"go on"}]},
      {"role":"system","content":"now"}])",
          R"([{"type":"text","text":"s"},{"type":"text","text":"t","cache_control":{"type":"ephemeral","ttl":"1h"}}])"),
      Json::parse(R"([
      {"role":"system","content":"s\n\nt"},
      {"role":"user","content":"a\n\nb\n\nc"},
      {"role":"assistant","content":"de","reasoning_content":"t","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":{"x":[1]}}},
        {"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},
      {"role":"tool","content":"r","tool_call_id":"2"},
      {"role":"tool","content":"Error: lost","tool_call_id":"1"},
      {"role":"user","content":"go on"},
      {"role":"system","content":"now"}])"));
}

TEST(AnthropicRequest, system_messages_at_the_beginning_become_one) {
  EXPECT_EQ(converted(R"([{"role":"system","content":"b"},{"role":"system","content":[{"type":"text","text":"c"}]},
                          {"role":"user","content":"u"},{"role":"system","content":"d"}])",
                      R"("a")"),
            Json::parse(R"([{"role":"system","content":"a\n\nb\n\nc"},{"role":"user","content":"u"},
                            {"role":"system","content":"d"}])"));
}

TEST(AnthropicRequest, hidden_thinking_is_read_from_its_signature) {
  const auto reasoning = [](const std::string& signature) {
    const Json block = {{"type", "thinking"}, {"thinking", ""}, {"signature", signature}};
    const Json turn = {{"role", "assistant"}, {"content", Json::array({block})}};
    return (*messages_from_anthropic(nullptr, Json::array({turn})))[0].value("reasoning_content",
                                                                             "");
  };
  EXPECT_EQ(reasoning(seal_reasoning("h\xc3\xa4?")), "h\xc3\xa4?");
  EXPECT_EQ(reasoning("of another server"), "");
  EXPECT_EQ(reasoning(seal_reasoning("\xc3(")), "");  // no text
}

TEST(AnthropicRequest, results_come_before_text) {
  EXPECT_EQ(
      converted(
          R"([{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
                          {"role":"user","content":[{"type":"text","text":"a"},
                            {"type":"tool_result","tool_use_id":"1"}]}])")["fault"],
      "messages[1].content[1].type 'tool_result' must come before the message's text");
}

}  // namespace
}  // namespace tailrace
