#include "output/gemma_grammar.h"

#include <algorithm>
#include <cctype>

#include "output/schema_parts.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 32;
constexpr const char* kQuote = "<|\"|>";

std::string value_rule(const Json& schema, int depth, GrammarText& grammar);

bool only_has(const Json& schema, std::initializer_list<const char*> keywords) {
  return std::all_of(schema.items().begin(), schema.items().end(), [&](const auto& item) {
    const auto same = [&](const char* keyword) { return item.key() == keyword; };
    return std::any_of(keywords.begin(), keywords.end(), same);
  });
}

std::string key_text(const std::string& name) {
  const bool bare = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
  return lark_quoted((bare ? name : Json(name).dump()) + ":");
}

// Members in order, commas between those that are there.
std::string object_rule(const Json& schema, int depth, GrammarText& grammar) {
  const auto members = schema_members(schema);
  std::string rest, first;  // rules for what may follow a member, and for a beginning; "": nothing
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    const std::string pair =
        grammar.rule("pair", key_text(member->name) + " " + value_rule(member->schema, depth + 1, grammar));
    const std::string begin = pair + " " + rest;
    const std::string next = grammar.rule("rest", "(\",\" " + pair + ")" + (member->required ? "" : "?") + " " + rest);
    const bool may_lack = !member->required;
    first = grammar.rule("first", begin + (may_lack ? " | " + (first.empty() ? std::string("\"\"") : first) : ""));
    rest = next;
  }
  return grammar.rule("object", "\"{\" " + first + " \"}\"");
}

std::string string_rule(const Json& schema, GrammarText& grammar) {
  const std::string quote = grammar.mark(kQuote);
  std::string any;
  for (const std::string& text : listed_strings(schema)) {
    any += (any.empty() ? "" : " | ") + quote + " " + lark_quoted(text) + " " + quote;
  }
  return grammar.rule("string", any.empty() ? quote + " " + grammar.text_until(kQuote) : any);
}

std::string value_rule(const Json& schema, int depth, GrammarText& grammar) {
  if (!schema.is_object() || depth > kMaxDepth) return grammar.json(schema);
  const Json type = schema.value("type", Json());
  if (!listed_strings(schema).empty()) return string_rule(schema, grammar);
  if (type == "string" &&
      only_has(schema, {"type", "description", "title", "default", "examples", "$defs", "definitions"})) {
    return string_rule(schema, grammar);
  }
  if (type == "object" && !schema_members(schema).empty() &&
      only_has(schema, {"type", "properties", "required", "additionalProperties", "description", "title", "$defs",
                        "definitions", "$schema"})) {
    return object_rule(schema, depth, grammar);
  }
  if (type == "array" && only_has(schema, {"type", "items", "description", "title", "$defs", "definitions"}) &&
      schema.contains("items")) {
    Json item = schema["items"];
    for (const char* definitions : {"$defs", "definitions"}) {
      if (item.is_object() && schema.contains(definitions)) item[definitions] = schema[definitions];
    }
    const std::string value = value_rule(item, depth + 1, grammar);
    return grammar.rule("array", "\"[\" (" + value + " (\",\" " + value + ")*)? \"]\"");
  }
  return grammar.json(schema);
}

}  // namespace

std::string gemma_arguments(const Json& parameters, GrammarText& grammar) {
  return value_rule(parameters.is_null() ? Json{{"type", "object"}} : parameters, 0, grammar);
}

}  // namespace tailrace
