// Every object that a request may hold: what its parser knows of it is what docs/openapi.json says of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>

#include "server/anthropic_request.h"
#include "server/openai_request.h"
#include "server/openapi.h"
#include "server/responses_input.h"
#include "server/responses_request.h"
#include "server/routes.h"

namespace tailrace {
namespace {

using Fault = std::optional<ApiError>;
using Parser = std::function<Fault(const std::string& body)>;
using Schemas = std::vector<const Json*>;

const RequestBounds kBounds{/*vocab_size=*/1000, /*max_choices=*/8, /*max_sequences=*/64};

template <typename T>
Fault fault_of(const ApiExpected<T>& parsed) {
  return parsed ? Fault() : Fault(parsed.error());
}

Fault fault_of_items(const ApiExpected<ResponsesRequest>& parsed) {
  if (!parsed) return parsed.error();
  return parsed->input.is_array() ? ResponsesConversation().add_items(parsed->input, "input") : Fault();
}

// Whatever could name a field: the words among the string literals of the sources that read fields.
const std::set<std::string>& words_of_the_sources() {
  static const std::set<std::string> words = [] {
    std::set<std::string> out;
    const std::regex literal("\"([a-z][a-z_]*)\"");
    for (const auto& file : std::filesystem::directory_iterator(TAILRACE_SOURCE_DIR "/src/server")) {
      const std::string name = file.path().filename();
      if (!name.ends_with(".cpp") || name.ends_with("_test.cpp")) continue;
      std::ifstream stream(file.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      if (text.find("FieldReader") == std::string::npos) continue;
      for (std::sregex_iterator it(text.begin(), text.end(), literal), end; it != end; ++it) out.insert((*it)[1]);
    }
    return out;
  }();
  return words;
}

const Json& document() {
  static const Json parsed = parse_json(openapi_text()).value();
  return parsed;
}

const Json& body_schema(const std::string& path) {
  return document().at("paths").at(path).at("post").at("requestBody").at("content").at("application/json").at("schema");
}

// The schema itself, or the alternatives that it consists of.
Schemas alternatives(const Json& schema) {
  if (const auto target = schema.find("$ref"); target != schema.end()) {
    return alternatives(document().at(Json::json_pointer(target->get<std::string>().substr(1))));
  }
  for (const char* word : {"anyOf", "oneOf"}) {
    if (!schema.contains(word)) continue;
    Schemas out;
    for (const Json& one : schema[word]) std::ranges::copy(alternatives(one), std::back_inserter(out));
    return out;
  }
  return {&schema};
}

bool is_of_type(const Json& value, const Json& schema) {
  if (const auto words = schema.find("enum"); words != schema.end()) {
    return std::find(words->begin(), words->end(), value) != words->end();
  }
  if (schema.contains("const")) return value == schema["const"];
  if (!schema.contains("type")) return true;
  const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
  const char* name = value.is_object() ? "object" : value.is_array() ? "array" : value.is_string() ? "string"
                     : value.is_boolean() ? "boolean" : value.is_null() ? "null" : "number";
  return std::find(types.begin(), types.end(), name) != types.end() ||
         (value.is_number_integer() && std::find(types.begin(), types.end(), "integer") != types.end());
}

// Whether this is how `value` is described, as far as its own members tell.
bool describes(const Json& schema, const Json& value) {
  if (!is_of_type(value, schema)) return false;
  if (!value.is_object() || !schema.contains("properties")) return true;
  for (const auto& [name, described] : schema["properties"].items()) {
    const Schemas ways = alternatives(described);
    const bool fits = !value.contains(name) || std::any_of(ways.begin(), ways.end(), [&](const Json* way) {
      return is_of_type(value[name], *way);
    });
    if (!fits) return false;
  }
  const Json required = schema.value("required", Json::array());
  return std::all_of(required.begin(), required.end(),
                     [&](const Json& name) { return value.contains(name.get<std::string>()); });
}

bool is_closed(const Json& schema) { return schema.value("additionalProperties", Json(true)) == false; }

// One request, compared object by object.
class Comparison {
 public:
  Comparison(const Parser& parser, Json sample) : parser_(parser), sample_(std::move(sample)) {}

  void run(const Json& schema, std::set<const Json*>& seen) {
    const auto fault = parser_(sample_.dump());
    ASSERT_FALSE(fault.has_value()) << fault->message << " of " << sample_;
    compare(Json::json_pointer(), alternatives(schema), seen);
  }

 private:
  // Whether the parser takes or refuses `word` by name in the object at `at`.
  bool is_known(const Json::json_pointer& at, const std::string& word) const {
    Json with = sample_;
    with[at][word] = 7;
    const auto fault = parser_(with.dump());
    return !fault || fault->code != "unknown_parameter" || !fault->param.ends_with(word);
  }

  void compare(const Json::json_pointer& at, const Schemas& candidates, std::set<const Json*>& seen) {
    const Json& value = sample_[at];
    Schemas fitting;
    std::ranges::copy_if(candidates, std::back_inserter(fitting), [&](const Json* s) { return describes(*s, value); });
    ASSERT_FALSE(fitting.empty()) << at << " is not described: " << value;
    seen.insert(fitting.begin(), fitting.end());
    if (value.is_object()) compare_members(at, fitting);
    if (!value.is_structured()) return;
    for (const auto& [name, inner] : value.items()) {
      Schemas below;
      for (const Json* schema : fitting) {
        const Json* properties = find(*schema, "properties");
        const Json* next = value.is_array() ? find(*schema, "items") : nullptr;
        if (value.is_object() && properties != nullptr) next = find(*properties, name);
        if (next != nullptr) std::ranges::copy(alternatives(*next), std::back_inserter(below));
      }
      if (!below.empty()) compare(value.is_array() ? at / std::stoul(name) : at / name, below, seen);
    }
  }

  void compare_members(const Json::json_pointer& at, const Schemas& fitting) {
    std::set<std::string> candidates = words_of_the_sources(), described;
    const bool open = !std::all_of(fitting.begin(), fitting.end(), [](const Json* s) { return is_closed(*s); });
    for (const Json* schema : fitting) {
      const Json properties = schema->value("properties", Json::object());
      for (const auto& [name, property] : properties.items()) described.insert(name);
    }
    candidates.insert(described.begin(), described.end());
    candidates.insert("no_field_at_all");
    for (const std::string& word : candidates) {
      if (sample_[at].contains(word)) continue;
      EXPECT_EQ(is_known(at, word), open || described.contains(word))
          << "'" << word << "' in '" << at << "' of " << sample_.dump().substr(0, 300);
    }
  }

  static const Json* find(const Json& object, const std::string& name) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }

  const Parser& parser_;
  const Json sample_;
};

// The objects of a schema that name all their members.
void collect_closed(const Json& schema, std::set<const Json*>& out) {
  for (const Json* one : alternatives(schema)) {
    if (is_closed(*one) && !out.insert(one).second) continue;
    if (one->contains("items")) collect_closed((*one)["items"], out);
    if (!one->contains("properties")) continue;
    for (const Json& property : (*one)["properties"]) collect_closed(property, out);
  }
}

void compare(const std::string& path, const Parser& parser, std::initializer_list<const char*> samples) {
  const Json& schema = body_schema(path);
  std::set<const Json*> seen, closed;
  for (const char* sample : samples) Comparison(parser, Json::parse(sample)).run(schema, seen);
  collect_closed(schema, closed);
  for (const Json* one : closed) EXPECT_TRUE(seen.contains(one)) << path << ": no sample holds a " << one->dump();
}

constexpr const char* kChat = R"({
  "messages": [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "x", "tool_call_id": "c"}],
  "stream": true, "stream_options": {"include_usage": true}, "logit_bias": {"5": 1}, "metadata": {"a": "b"},
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "tool_choice": {"type": "function", "function": {"name": "f"}}, "chat_template_kwargs": {"a": 1},
  "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}})";
constexpr const char* kChatOtherwise = R"({
  "messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"regex": "a"},
  "tools": [{"type": "function", "function": {"name": "f"}}],
  "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
    "tools": [{"type": "function", "function": {"name": "f"}}]}}})";

TEST(OpenApiFields, chat) {
  compare("/v1/chat/completions", [](const auto& body) { return fault_of(parse_chat_request(body, kBounds)); },
          {kChat, kChatOtherwise});
}

TEST(OpenApiFields, completions) {
  compare("/v1/completions", [](const auto& body) { return fault_of(parse_completion_request(body, kBounds)); },
          {R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}, "metadata": {"a": "b"},
               "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}})",
           R"({"prompt": "x", "structured_outputs": {"regex": "a"}})"});
}

TEST(OpenApiFields, tokens_and_abort) {
  compare("/tokenize", [](const auto& body) { return fault_of(parse_tokenize_request(body)); },
          {R"({"prompt": "x"})", kChat, kChatOtherwise});
  compare("/detokenize", [](const auto& body) { return fault_of(parse_detokenize_request(body, 10)); },
          {R"({"tokens": [1]})"});
  compare("/abort", [](const auto& body) { return fault_of(parse_abort_request(body)); },
          {R"({"request_id": "x"})", R"({"all": true})"});
}

constexpr const char* kInput = R"(
    "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "x"}],
    "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
    "tools": [{"type": "function", "name": "f"},
              {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}],
    "tool_choice": {"type": "function", "name": "f"})";
constexpr const char* kInputOtherwise = R"({
    "input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}})";

TEST(OpenApiFields, responses) {
  const std::string counted = "{" + std::string(kInput) + "}", asked = "{" + std::string(kInput) + R"(,
    "stream": true, "stream_options": {"include_obfuscation": false},
    "metadata": {"a": "b"}, "client_metadata": {"a": 1}, "prompt_cache_options": {"mode": "explicit"}})";
  compare("/v1/responses",
          [](const auto& body) { return fault_of_items(parse_responses_request(body, kBounds, /*may_store=*/true)); },
          {asked.c_str(), kInputOtherwise});
  compare("/v1/responses/input_tokens",
          [](const auto& body) { return fault_of_items(parse_input_tokens_request(body)); },
          {counted.c_str(), kInputOtherwise});
}

constexpr const char* kTalk = R"(
  "model": "m", "system": [{"type": "text", "text": "be brief"}],
  "messages": [
    {"role": "system", "content": "and kind"},
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}],
  "tools": [{"name": "f", "input_schema": {"type": "object"}}],
  "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})";

TEST(OpenApiFields, messages) {
  const std::vector<std::string> ends = {
      R"(, "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"},
           "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}})",
      R"(, "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
           "output_format": {"type": "json_schema", "schema": {}})",
      R"(, "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"})"};
  std::vector<std::string> counted, asked;
  for (const std::string& end : ends) {
    counted.push_back("{" + std::string(kTalk) + end + "}");
    asked.push_back("{" + std::string(kTalk) + end + R"(, "max_tokens": 2000, "metadata": {"user_id": "u"}})");
  }
  compare("/v1/messages", [](const auto& body) { return fault_of(parse_messages_request(body)); },
          {asked[0].c_str(), asked[1].c_str(), asked[2].c_str()});
  compare("/v1/messages/count_tokens", [](const auto& body) { return fault_of(parse_count_tokens_request(body)); },
          {counted[0].c_str(), counted[1].c_str(), counted[2].c_str()});
}

TEST(OpenApiFields, query_parameters) {
  for (const Route& route : routes()) {
    std::string method(route.method), described;
    std::transform(method.begin(), method.end(), method.begin(), [](unsigned char c) { return std::tolower(c); });
    const Json& operation = document().at("paths").at(std::string(route.path)).at(method);
    const Json parameters = operation.value("parameters", Json::array());
    for (const Json& parameter : parameters) {
      if (parameter["in"] != "query") continue;
      described += (described.empty() ? "" : " ") + parameter["name"].get<std::string>();
    }
    EXPECT_EQ(route.query, described) << route.method << " " << route.path;
  }
}

}  // namespace
}  // namespace tailrace
