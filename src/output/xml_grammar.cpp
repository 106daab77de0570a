#include "output/xml_grammar.h"

#include "output/schema_parts.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEnd = "\n</parameter>";

// Text as it stands, up to the closing tag.
Expected<std::string> string_value(const SchemaMember& member, GrammarText& grammar) {
  std::string any;
  for (const std::string& text : listed_strings(member.schema)) {
    any += (any.empty() ? "" : " | ") + lark_quoted(text + kEnd);
  }
  if (!any.empty()) return grammar.rule("listed", any);
  for (const char* keyword : {"pattern", "format"}) {
    if (!member.schema.contains(keyword)) continue;
    return fail(StatusCode::kUnsupported, std::string("\"") + keyword + "\" of the parameter '" + member.name +
                                              "' cannot be kept in this model's calls, which write strings bare");
  }
  const int64_t least = member.schema.value("minLength", int64_t{0});
  std::string regex = "/(.|\\n)*/";
  if (least > 0 || member.schema.contains("maxLength")) {
    const std::string most =
        member.schema.contains("maxLength") ? std::to_string(member.schema["maxLength"].get<int64_t>()) : "";
    regex = "/(.|\\n){" + std::to_string(least) + "," + most + "}/";
  }
  return grammar.rule("until", regex, "[suffix=" + lark_quoted(kEnd) + "]");
}

}  // namespace

Expected<std::string> xml_function(const CallableFunction& function, GrammarText& grammar) {
  std::string body = lark_quoted("<function=" + function.name + ">\n");
  const auto members = schema_members(function.parameters);
  // How the parser reads a value is asked of it, so that both agree.
  const Json offered = Json::array({{{"type", "function"},
                                     {"function", {{"name", function.name}, {"parameters", function.parameters}}}}});
  const OfferedTools types(offered);
  for (const SchemaMember& member : members) {
    if (member.name.find_first_of("<>\n\r\"") != std::string::npos || member.name.empty()) {
      return fail(StatusCode::kUnsupported, "a parameter's name cannot be written in this model's calls");
    }
    const bool is_string = types.type_of(function.name, member.name) == ParameterType::kString;
    std::string value;
    if (is_string) {
      auto text = string_value(member, grammar);
      if (!text) return text;
      value = *text;
    } else {
      value = grammar.json(member.schema) + " " + lark_quoted(kEnd);
    }
    const std::string open = lark_quoted("<parameter=" + member.name + ">\n") + " ";
    const std::string rule = grammar.rule("parameter", open + value + " \"\\n\"");
    body += " " + rule + (member.required ? "" : "?");
  }
  const bool closed = function.parameters.is_object() && function.parameters.contains("additionalProperties") &&
                      function.parameters["additionalProperties"] == false;
  if (members.empty() && !closed) {
    const std::string value = grammar.rule("until", "/(.|\\n)*/", "[suffix=" + lark_quoted(kEnd) + "]");
    const std::string open = "\"<parameter=\" /[A-Za-z0-9_.\\-]{1,64}/ \">\\n\" ";
    body += " " + grammar.rule("parameter", open + value + " \"\\n\"") + "*";
  }
  return grammar.rule("function", body + " \"</function>\"");
}

}  // namespace tailrace
