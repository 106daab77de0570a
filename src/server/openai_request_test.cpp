#include "server/openai_request.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

const RequestBounds kBounds{/*vocab_size=*/1000, /*max_choices=*/8, /*max_sequences=*/64};

std::string chat_with(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}

ChatRequest chat_ok(const std::string& more) {
  auto parsed = parse_chat_request(chat_with(more), kBounds);
  EXPECT_TRUE(parsed.has_value()) << more << ": " << (parsed ? "" : parsed.error().message);
  return parsed ? std::move(*parsed) : ChatRequest{};
}

// The param of the error, after checking that there is one with a message.
std::string chat_error(const std::string& body) {
  auto parsed = parse_chat_request(body, kBounds);
  EXPECT_FALSE(parsed.has_value()) << body;
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().http_status, 400);
  EXPECT_FALSE(parsed.error().message.empty());
  return parsed.error().param;
}

std::string completion_error(const std::string& body) {
  auto parsed = parse_completion_request(body, kBounds);
  EXPECT_FALSE(parsed.has_value()) << body;
  return parsed ? "accepted" : parsed.error().param;
}

TEST(OpenaiRequest, fields_reach_their_place) {
  const auto params = chat_ok(R"("model":"m","stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":7,
    "min_tokens":3,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-1,
    "frequency_penalty":2,"seed":42,"logit_bias":{"5":-100,"6":1.5},"stop":["a","b"],"stop_token_ids":[1,2],
    "ignore_eos":true,"logprobs":true,"top_logprobs":3,"cache_salt":"s")").params;
  EXPECT_EQ(params.model, "m");
  EXPECT_TRUE(params.stream && params.include_usage && params.ignore_eos);
  EXPECT_EQ(params.n, 2);
  EXPECT_EQ(params.max_tokens, 7);
  EXPECT_EQ(params.min_tokens, 3);
  EXPECT_EQ(params.temperature, 0.5f);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.min_p, 0.1f);
  EXPECT_EQ(params.repetition_penalty, 1.1f);
  EXPECT_EQ(params.presence_penalty, -1.0f);
  EXPECT_EQ(params.frequency_penalty, 2.0f);
  EXPECT_EQ(params.seed, 42u);
  EXPECT_EQ(params.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -100.0f}, {6, 1.5f}}));
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.stop_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(params.num_top_logprobs, 3);
  EXPECT_EQ(params.cache_salt, "s");
}

TEST(OpenaiRequest, null_means_absent_for_every_optional_field) {
  std::string more;
  for (const char* name :
       {"model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p",
        "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "logit_bias", "stop",
        "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs", "cache_salt", "tools", "tool_choice", "functions",
        "function_call", "response_format", "modalities", "audio", "user", "metadata", "store", "service_tier",
        "parallel_tool_calls", "reasoning_effort", "prediction", "chat_template_kwargs", "add_generation_prompt"}) {
    more += std::string(more.empty() ? "" : ",") + "\"" + name + "\":null";
  }
  const auto params = chat_ok(more).params;
  EXPECT_EQ(params.n, 1);
  EXPECT_FALSE(params.temperature.has_value());
  EXPECT_FALSE(params.max_tokens.has_value());
}

TEST(OpenaiRequest, numbers_out_of_range_or_of_another_type) {
  for (const char* name : {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}) {
    for (const char* value : {"1e999", "-1e999", "NaN", "Infinity", "\"0.5\"", "true", "[]", "{}", "-5", "200"}) {
      EXPECT_EQ(chat_error(chat_with("\"" + std::string(name) + "\":" + value)), name) << value;
    }
  }
  for (const char* name : {"n", "max_tokens", "max_completion_tokens"}) {
    for (const char* value : {"0", "-1", "1e6", "2.5", "9e18", "99999999999999999999", "\"1\"", "true", "[]", "{}"}) {
      EXPECT_EQ(chat_error(chat_with("\"" + std::string(name) + "\":" + value)), name) << value;
    }
  }
  EXPECT_EQ(chat_error(chat_with(R"("n":1000000)")), "n");
  EXPECT_EQ(chat_error(chat_with(R"("top_p":0)")), "top_p");
  EXPECT_EQ(chat_error(chat_with(R"("top_k":-2)")), "top_k");
  EXPECT_EQ(chat_error(chat_with(R"("repetition_penalty":0)")), "repetition_penalty");
  EXPECT_EQ(chat_error(chat_with(R"("seed":1.5)")), "seed");
  EXPECT_EQ(chat_error(chat_with(R"("min_tokens":8,"max_tokens":7)")), "min_tokens");
  EXPECT_EQ(chat_error(chat_with(R"("max_tokens":8,"max_completion_tokens":7)")), "max_tokens");
}

TEST(OpenaiRequest, edges_that_are_allowed) {
  EXPECT_EQ(chat_ok(R"("temperature":0)").params.temperature, 0.0f);
  EXPECT_EQ(chat_ok(R"("temperature":1e-60)").params.temperature, 0.0f);
  EXPECT_EQ(chat_ok(R"("temperature":2)").params.temperature, 2.0f);
  EXPECT_GT(*chat_ok(R"("top_p":1e-300)").params.top_p, 0.0f);
  EXPECT_EQ(chat_ok(R"("top_k":-1)").params.top_k, 0);
  EXPECT_EQ(chat_ok(R"("seed":-1)").params.seed, UINT64_MAX);
  EXPECT_EQ(chat_ok(R"("seed":18446744073709551615)").params.seed, UINT64_MAX);
  EXPECT_EQ(chat_ok(R"("n":8)").params.n, 8);
  EXPECT_EQ(chat_ok(R"("stop":"")").params.stop.size(), 0u);
  EXPECT_EQ(chat_ok(R"("stop":[])").params.stop.size(), 0u);
  EXPECT_EQ(chat_ok(R"("logprobs":true)").params.num_top_logprobs, 0);
}

TEST(OpenaiRequest, logit_bias_faults) {
  for (const char* value : {R"({"999999":1})", R"({"1000":1})", R"({"-1":1})", R"({"x":1})", R"({"":1})", R"({"1":1e999})",
                            R"({"1":101})", R"({"1":"1"})", R"({"1":null})", R"({"1":1,"01":2})", R"([])", R"(5)",
                            R"({"1":NaN})", R"({" 1":1})", R"({"99999999999999999999":1})"}) {
    EXPECT_EQ(chat_error(chat_with(R"("logit_bias":)" + std::string(value))), "logit_bias") << value;
  }
}

TEST(OpenaiRequest, stop_faults) {
  EXPECT_EQ(chat_error(chat_with(R"("stop":{})")), "stop");
  EXPECT_EQ(chat_error(chat_with(R"("stop":[1])")), "stop");
  EXPECT_EQ(chat_error(chat_with(R"("stop":")" + std::string(10000, 'x') + "\"")), "stop");
  EXPECT_EQ(chat_error(chat_with(R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])")), "stop");
  EXPECT_EQ(chat_error(chat_with(R"("stop_token_ids":[1000])")), "stop_token_ids");
  EXPECT_EQ(chat_error(chat_with(R"("stop_token_ids":[1.5])")), "stop_token_ids");
  EXPECT_EQ(chat_error(chat_with(R"("stop_token_ids":7)")), "stop_token_ids");
}

TEST(OpenaiRequest, messages_faults_name_the_path) {
  const auto with_messages = [](const std::string& messages) { return chat_error(R"({"messages":)" + messages + "}"); };
  EXPECT_EQ(chat_error("{}"), "messages");
  EXPECT_EQ(with_messages("null"), "messages");
  EXPECT_EQ(with_messages("[]"), "messages");
  EXPECT_EQ(with_messages("{}"), "messages");
  EXPECT_EQ(with_messages("[5]"), "messages[0]");
  EXPECT_EQ(with_messages("[{}]"), "messages[0].role");
  EXPECT_EQ(with_messages(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":[]}])"), "messages[0].content");
  EXPECT_EQ(with_messages(R"([{"role":"robot","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":"x"},{"role":"tool","content":"x"}])"), "messages[1].tool_call_id");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text");
  EXPECT_EQ(with_messages(R"([{"role":"user","content":"x","colour":1}])"), "messages[0].colour");
  EXPECT_EQ(with_messages(R"([{"role":"assistant","content":"x","tool_calls":[{}]}])"), "messages[0].tool_calls[0].id");
}

TEST(OpenaiRequest, messages_are_brought_into_the_templates_form) {
  auto parsed = parse_chat_request(
      R"({"messages":[{"role":"developer","content":"d","name":null},
                      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                      {"role":"assistant","content":"c","tool_calls":[],"refusal":null,"annotations":[]}]})", kBounds);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->messages.dump(), R"([{"role":"system","content":"d"},{"role":"user","content":"ab"},)"
                                     R"({"role":"assistant","content":"c"}])");
}

TEST(OpenaiRequest, known_but_unsupported_features_name_the_field) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"tool_choice", "\"required\""}, {"functions", "[{}]"},
           {"function_call", R"({"name":"f"})"},
           {"modalities", R"(["audio"])"}, {"audio", "{}"}, {"prediction", "{}"},
           {"service_tier", "\"flex\""}, {"web_search_options", "{}"}, {"continue_final_message", "true"}}) {
    EXPECT_EQ(chat_error(chat_with("\"" + name + "\":" + value)), name);
  }
  chat_ok(R"("tools":[],"tool_choice":"none","response_format":{"type":"text"},"modalities":["text"])");
  chat_ok(R"("tools":null,"tool_choice":null)");
  chat_ok(R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","prompt_cache_key":"k")");
}

TEST(OpenaiRequest, tools_faults_name_the_path) {
  const auto with_tools = [](const std::string& tools, const std::string& more = "") {
    return chat_error(chat_with("\"tools\":" + tools + more));
  };
  const auto function = [&](const std::string& inner) { return with_tools(R"([{"type":"function","function":)" + inner + "}]"); };
  EXPECT_EQ(with_tools("{}"), "tools");
  EXPECT_EQ(with_tools("[5]"), "tools[0]");
  EXPECT_EQ(with_tools(R"([{"type":"custom","custom":{}}])"), "tools[0].type");
  EXPECT_EQ(with_tools(R"([{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(function("7"), "tools[0].function");
  EXPECT_EQ(function("{}"), "tools[0].function.name");
  EXPECT_EQ(function(R"({"name":"a b"})"), "tools[0].function.name");
  EXPECT_EQ(function(R"({"name":"<|im_end|>"})"), "tools[0].function.name");
  EXPECT_EQ(function(R"({"name":"f","parameters":[]})"), "tools[0].function.parameters");
  EXPECT_EQ(function(R"({"name":"f","strict":1})"), "tools[0].function.strict");
  EXPECT_EQ(function(R"({"name":"f","colour":1})"), "tools[0].function.colour");
  EXPECT_EQ(with_tools(R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"),
            "tools[1].function.name");
  const std::string one = R"([{"type":"function","function":{"name":"f","strict":false,"description":null}}])";
  EXPECT_EQ(with_tools(one, R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"), "tool_choice.function.name");
  EXPECT_EQ(with_tools(one, R"(,"tool_choice":{"type":"function"})"), "tool_choice.function");
  EXPECT_EQ(with_tools(one, R"(,"tool_choice":{"type":"custom","custom":{"name":"f"}})"), "tool_choice.type");
  EXPECT_EQ(with_tools(one, R"(,"tool_choice":"required","ignore_eos":true)"), "ignore_eos");
  EXPECT_EQ(with_tools(one, R"(,"tool_choice":"sometimes")"), "tool_choice");
  EXPECT_EQ(with_tools(one, R"(,"parallel_tool_calls":1)"), "parallel_tool_calls");
  const ChatRequest request = chat_ok("\"tools\":" + one + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(request.tools.offered.dump(), R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_FALSE(request.tools.parallel_calls);
  EXPECT_TRUE(chat_ok("\"tools\":" + one + R"(,"tool_choice":"none")").tools.offered.empty());
  EXPECT_EQ(chat_error(chat_with(R"("reasoning_effort":"extreme")")), "reasoning_effort");
  EXPECT_EQ(chat_ok(R"("reasoning_effort":"low")").reasoning_effort, "low");
}

TEST(OpenaiRequest, choices_among_tools_and_strict_ones) {
  const std::string two = R"("tools":[{"type":"function","function":{"name":"f"}},)"
                          R"({"type":"function","function":{"name":"g","strict":true}}])";
  const ToolParams some = chat_ok(two).tools;
  EXPECT_TRUE(some.constrained() && !some.required);
  EXPECT_EQ(some.strict, std::set<std::string>{"g"});
  EXPECT_EQ(some.offered.dump().find("strict"), std::string::npos);  // templates do not see it
  EXPECT_FALSE(chat_ok(two + R"(,"tool_choice":"none")").tools.constrained());
  EXPECT_TRUE(chat_ok(two + R"(,"tool_choice":"required")").tools.required);
  const ToolParams named = chat_ok(two + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})").tools;
  EXPECT_TRUE(named.required);
  EXPECT_EQ(named.forced, "f");
}

TEST(OpenaiRequest, allowed_tools_are_all_that_is_offered) {
  const std::string three = R"("tools":[{"type":"function","function":{"name":"f","strict":true}},)"
                            R"({"type":"function","function":{"name":"g"}},)"
                            R"({"type":"function","function":{"name":"h","strict":true}}])";
  const auto allowing = [&](const std::string& allowed) {
    return three + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":)" + allowed + "}";
  };
  const auto choice = [](const std::string& name) { return R"({"type":"function","function":{"name":")" + name + R"("}})"; };
  const ToolParams some = chat_ok(allowing(R"({"mode":"auto","tools":[)" + choice("h") + "," + choice("g") + "]}")).tools;
  ASSERT_EQ(some.offered.size(), 2u);
  EXPECT_EQ(some.offered[0]["function"]["name"], "g");  // in the order in which they are offered
  EXPECT_TRUE(some.strict == std::set<std::string>{"h"} && !some.required);
  EXPECT_TRUE(chat_ok(allowing(R"({"mode":"required","tools":[)" + choice("g") + "]}")).tools.required);
  for (const auto& [allowed, param] : std::vector<std::pair<std::string, std::string>>{
           {"7", "tool_choice.allowed_tools"},
           {R"({"tools":[)" + choice("g") + "]}", "tool_choice.allowed_tools.mode"},
           {R"({"mode":"auto","tools":[]})", "tool_choice.allowed_tools.tools"},
           {R"({"mode":"auto","tools":["g"]})", "tool_choice.allowed_tools.tools[0]"},
           {R"({"mode":"auto","tools":[{"type":"mcp"}]})", "tool_choice.allowed_tools.tools[0].type"},
           {R"({"mode":"auto","tools":[{"type":"function"}]})", "tool_choice.allowed_tools.tools[0].function"},
           {R"({"mode":"auto","tools":[)" + choice("g") + "," + choice("x") + "]}",
            "tool_choice.allowed_tools.tools[1].function.name"}}) {
    EXPECT_EQ(chat_error(chat_with(allowing(allowed))), param) << allowed;
  }
}

TEST(OpenaiRequest, forms_of_answers_reach_the_grammar) {
  EXPECT_FALSE(chat_ok(R"("response_format":{"type":"text"})").params.form);
  EXPECT_FALSE(chat_ok(R"("response_format":null,"guided_json":null,"structured_outputs":null)").params.form);
  EXPECT_FALSE(chat_ok(R"("structured_outputs":{"json_object":false})").params.form);
  const auto form = [](const std::string& more) {
    const auto parsed = chat_ok(more).params.form;
    EXPECT_TRUE(parsed.has_value()) << more;
    const char* kinds[] = {"lark ", "json ", "regex "};
    return parsed ? parsed->field + ": " + kinds[static_cast<int>(parsed->body.kind)] + parsed->body.body : "";
  };
  EXPECT_EQ(form(R"("response_format":{"type":"json_object"})"), R"(response_format: json {"type":"object"})");
  EXPECT_EQ(form(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"null"}}})"),
            R"(response_format.json_schema.schema: json {"type":"null"})");
  EXPECT_EQ(form(R"("structured_outputs":{"json":"{\"type\": \"null\"}"})"), R"(structured_outputs.json: json {"type":"null"})");
  EXPECT_EQ(form(R"("structured_outputs":{"regex":"a+"})"), "structured_outputs.regex: regex a+");
  EXPECT_EQ(form(R"("structured_outputs":{"choice":["a","\"b\""]})"),
            R"(structured_outputs.choice: lark start: "a" | "\"b\"")");
  EXPECT_EQ(form(R"("guided_grammar":"start: \"x\"")"), R"(guided_grammar: lark start: "x")");
  EXPECT_EQ(form(R"("guided_choice":["a"])"), R"(guided_choice: lark start: "a")");
  EXPECT_EQ(form(R"("regex":"a+")"), "regex: regex a+");
  EXPECT_EQ(form(R"("ebnf":"root ::= \"x\"")"), R"(ebnf: lark root ::= "x")");
  const auto completion = parse_completion_request(R"({"prompt":"x","guided_regex":"a"})", kBounds);
  EXPECT_TRUE(completion && completion->params.form);
}

TEST(OpenaiRequest, faults_of_forms_name_the_path) {
  const auto error = [](const std::string& more) { return chat_error(chat_with(more)); };
  EXPECT_EQ(error(R"("response_format":"json")"), "response_format");
  EXPECT_EQ(error(R"("response_format":{})"), "response_format.type");
  EXPECT_EQ(error(R"("response_format":{"type":"xml"})"), "response_format.type");
  EXPECT_EQ(error(R"("response_format":{"type":"text","colour":1})"), "response_format.colour");
  EXPECT_EQ(error(R"("response_format":{"type":"json_object","json_schema":{}})"), "response_format.json_schema");
  EXPECT_EQ(error(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
  const auto schema = [&](const std::string& inner) {
    return error(R"("response_format":{"type":"json_schema","json_schema":)" + inner + "}");
  };
  EXPECT_EQ(schema(R"({"schema":{}})"), "response_format.json_schema.name");
  EXPECT_EQ(schema(R"({"name":"n"})"), "response_format.json_schema.schema");
  EXPECT_EQ(schema(R"({"name":"n","schema":[]})"), "response_format.json_schema.schema");
  EXPECT_EQ(schema(R"({"name":"n","schema":{"x-guidance":{"lenient":true}}})"), "response_format.json_schema.schema");
  EXPECT_EQ(schema(R"({"name":"n","schema":{},"strict":1})"), "response_format.json_schema.strict");
  EXPECT_EQ(schema(R"({"name":"n","schema":{"description":")" + std::string(300 << 10, 'x') + R"("}})"),
            "response_format.json_schema.schema");
  EXPECT_EQ(error(R"("structured_outputs":[])"), "structured_outputs");
  EXPECT_EQ(error(R"("structured_outputs":{})"), "structured_outputs") << "what was meant got lost";
  EXPECT_EQ(error(R"("structured_outputs":{"choice":null})"), "structured_outputs");
  EXPECT_EQ(error(R"("structured_outputs":{"structural_tag":"x"})"), "structured_outputs.structural_tag");
  EXPECT_EQ(error(R"("structured_outputs":{"regex":""})"), "structured_outputs.regex");
  EXPECT_EQ(error(R"("structured_outputs":{"choice":[]})"), "structured_outputs.choice");
  EXPECT_EQ(error(R"("structured_outputs":{"choice":["a",1]})"), "structured_outputs.choice");
  EXPECT_EQ(error(R"("structured_outputs":{"json":"{"})"), "structured_outputs.json");
  EXPECT_EQ(error(R"("structured_outputs":{"json_object":1})"), "structured_outputs.json_object");
  EXPECT_EQ(error(R"("structured_outputs":{"regex":"a","json_object":true})"), "structured_outputs.regex");
  EXPECT_EQ(error(R"("guided_regex":"a","response_format":{"type":"json_object"})"), "guided_regex");
  EXPECT_EQ(error(R"("guided_regex":"a","ignore_eos":true)"), "ignore_eos");
  EXPECT_EQ(completion_error(R"({"prompt":"x","guided_json":7})"), "guided_json");
}

TEST(OpenaiRequest, calls_and_their_results_in_messages) {
  const auto with_call = [](const std::string& call, const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[)" + call + "]}" +
           more + "]}";
  };
  const auto call = [](const std::string& arguments) {
    return R"({"id":"c1","type":"function","function":{"name":"f","arguments":)" + arguments + "}}";
  };
  const std::string path = "messages[1].tool_calls[0]";
  EXPECT_EQ(chat_error(with_call(call("{}"))), path + ".function.arguments");
  EXPECT_EQ(chat_error(with_call(call(R"("[1]")"))), path + ".function.arguments");
  EXPECT_EQ(chat_error(with_call(call(R"("{\"a\":")"))), path + ".function.arguments");
  EXPECT_EQ(chat_error(with_call(R"({"id":"c1","type":"custom","function":{"name":"f","arguments":"{}"}})")), path + ".type");
  EXPECT_EQ(chat_error(with_call(R"({"id":"c1","function":{"name":"","arguments":"{}"}})")), path + ".function.name");
  EXPECT_EQ(chat_error(with_call(call(R"("{}")"), R"(,{"role":"tool","content":"r","tool_call_id":"c2"})")),
            "messages[2].tool_call_id");
  EXPECT_EQ(chat_error(with_call(call(R"("{}")"), R"(,{"role":"tool","tool_call_id":"c1"})")), "messages[2].content");
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user","content":"x","tool_calls":[1]}]})"), "messages[0].tool_calls");
  auto parsed = parse_chat_request(
      with_call(call(R"("{\"z\":1,\"a\":[true]}")"), R"(,{"role":"tool","content":[{"type":"text","text":"r"}],"tool_call_id":"c1"})"),
      kBounds);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->messages[1].dump(),
            R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
            R"("function":{"name":"f","arguments":{"z":1,"a":[true]}}}]})");
  EXPECT_EQ(parsed->messages[2].dump(), R"({"role":"tool","content":"r","tool_call_id":"c1"})");
  EXPECT_TRUE(parse_chat_request(with_call(call(R"("")")), kBounds).has_value());
  // Arguments are parsed, so their values are bounded over all calls together.
  std::string many = R"({\"a\":[0)";
  for (int i = 0; i < 200'000; ++i) many += ",0";
  many += "]}";
  EXPECT_TRUE(parse_chat_request(with_call(call('"' + many + '"')), kBounds).has_value());
  EXPECT_EQ(chat_error(with_call(call('"' + many + '"') + "," + call('"' + many + '"'))),
            "messages[1].tool_calls[1].function.arguments");
}

TEST(OpenaiRequest, unknown_fields_are_named) {
  EXPECT_EQ(chat_error(chat_with(R"("temprature":0)")), "temprature");
  EXPECT_EQ(chat_error(chat_with(R"("prompt":"x")")), "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":"x","messages":[]})"), "messages");
  EXPECT_EQ(chat_error(chat_with(R"("stream":true,"stream_options":{"usage":true})")), "stream_options.usage");
}

TEST(OpenaiRequest, stream_and_logprobs_dependencies) {
  EXPECT_EQ(chat_error(chat_with(R"("stream":"yes")")), "stream");
  EXPECT_EQ(chat_error(chat_with(R"("stream_options":{"include_usage":true})")), "stream_options");
  EXPECT_EQ(chat_error(chat_with(R"("stream":true,"stream_options":5)")), "stream_options");
  EXPECT_EQ(chat_error(chat_with(R"("top_logprobs":2)")), "top_logprobs");
  EXPECT_EQ(chat_error(chat_with(R"("logprobs":true,"top_logprobs":21)")), "top_logprobs");
  EXPECT_EQ(chat_error(chat_with(R"("logprobs":1)")), "logprobs");
}

TEST(OpenaiRequest, bodies_that_are_not_requests) {
  for (const std::string body : {"", " ", "{", "[]", "null", "5", "\"x\"", "\xff\xfe", "{\"a\":1}x", "{'a':1}",
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}"}) {
    auto parsed = parse_chat_request(body, kBounds);
    ASSERT_FALSE(parsed.has_value()) << body;
    EXPECT_EQ(parsed.error().http_status, 400);
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(chat_error(R"({"metadata":)" + deep + "}"), "metadata");
  EXPECT_EQ(chat_error(R"({"n":1,"n":2})"), "n");
}

TEST(OpenaiRequest, completion_prompts) {
  const auto prompts = [](const std::string& prompt) {
    auto parsed = parse_completion_request(R"({"prompt":)" + prompt + "}", kBounds);
    EXPECT_TRUE(parsed.has_value()) << prompt;
    return parsed ? parsed->prompts.size() : 0;
  };
  EXPECT_EQ(prompts(R"("text")"), 1u);
  EXPECT_EQ(prompts(R"(["a","b"])"), 2u);
  EXPECT_EQ(prompts("[1,2,3]"), 1u);
  EXPECT_EQ(prompts("[[1],[2,3]]"), 2u);
  EXPECT_EQ(prompts(R"(["a",[1]])"), 2u);
  for (const char* prompt : {"null", "5", "{}", "\"\"", "[]", "[[]]", "[null]", "[true]", "[1,\"a\"]", "[1000]", "[-1]",
                             "[1.5]", "[[1000]]", "[[\"a\"]]", "[{}]"}) {
    EXPECT_EQ(completion_error(R"({"prompt":)" + std::string(prompt) + "}"), "prompt") << prompt;
  }
  EXPECT_EQ(completion_error("{}"), "prompt");
  std::string many = "[";
  for (int i = 0; i < 65; ++i) many += (i == 0 ? "\"x\"" : ",\"x\"");
  EXPECT_EQ(completion_error(R"({"prompt":)" + many + "]}"), "prompt");
}

TEST(OpenaiRequest, completion_only_fields) {
  const auto parsed = parse_completion_request(R"({"prompt":"x","logprobs":5,"echo":false,"best_of":1,"suffix":null})", kBounds);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->params.num_top_logprobs, 5);
  EXPECT_FALSE(parsed->lists_prompts());
  // The choices of eight prompts fit the queue, but not with what finds the prompts' own log probabilities.
  const std::string eight = R"({"echo":true,"n":8,"prompt":["1","2","3","4","5","6","7","8"])";
  EXPECT_TRUE(parse_completion_request(eight + "}", kBounds).has_value());
  EXPECT_EQ(completion_error(eight + R"(,"logprobs":0})"), "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":"x","max_tokens":-1})"), "max_tokens");
  EXPECT_EQ(completion_error(R"({"prompt":"x","best_of":3})"), "best_of");
  EXPECT_EQ(completion_error(R"({"prompt":"x","suffix":"y"})"), "suffix");
  EXPECT_EQ(completion_error(R"({"prompt":"x","logprobs":true})"), "logprobs");
  EXPECT_EQ(completion_error(R"({"prompt":"x","logprobs":21})"), "logprobs");
  EXPECT_EQ(completion_error(R"({"prompt":"x","max_completion_tokens":1})"), "max_completion_tokens");
}

}  // namespace
}  // namespace tailrace
