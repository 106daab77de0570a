#include "server/anthropic_tools.h"

#include <algorithm>
#include <cctype>

#include "server/request_labels.h"

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxAnthropicToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// What only tools that Anthropic's servers run, or find, would need.
void refuse_server_features(FieldReader& fields) {
  read_cache_control(fields);
  fields.refuse("defer_loading", {Json(false)}, "there is no tool search");
  fields.refuse("allowed_callers", {Json::array({"direct"})}, "no tools run here");
  fields.refuse("input_examples", {Json::array()}, "put them into the description");
  fields.refuse("eager_input_streaming", {Json(true)}, "input is streamed as it comes");
}

// One entry of `tools`, as chat completions have it.
std::optional<Json> read_tool(FieldReader& fields, ToolParams& out) {
  std::string type = "custom", name, description;
  bool strict = false;
  fields.read("type", type, 64);
  if (type != "custom") {
    fields.set_error(
        "type", "'" + type + "' is not supported: the client's own tools are, with an input_schema",
        "unsupported_parameter");
  }
  fields.read("name", name, kMaxTextBytes);
  if (fields.ok() && !is_tool_name(name)) {
    fields.set_error("name", "must be 1 to " + std::to_string(kMaxAnthropicToolNameBytes) +
                                 " of A-Z, a-z, 0-9, '_', '-' and '.'");
  }
  fields.read("description", description, kMaxTextBytes);
  fields.read("strict", strict);
  const Json* schema = fields.get("input_schema");
  if (schema == nullptr || !schema->is_object())
    fields.set_error("input_schema", "must be an object");
  refuse_server_features(fields);
  fields.refuse_unknown();
  const auto same = [&](const Json& tool) { return tool["function"]["name"] == name; };
  if (fields.ok() && std::any_of(out.offered.begin(), out.offered.end(), same)) {
    fields.set_error("name", "'" + name + "' is offered twice");
  }
  if (!fields.ok()) return std::nullopt;
  if (strict) out.strict.insert(name);
  Json function = {{"name", name}};
  if (!description.empty()) function["description"] = description;
  function["parameters"] = *schema;
  return Json{{"type", "function"}, {"function", std::move(function)}};
}

void read_tool_list(FieldReader& fields, const Json& tools, ToolParams& out) {
  if (!tools.is_array())
    return fields.set_error("tools", std::string("must be an array, not ") + json_kind(tools));
  if (tools.size() > kMaxTools)
    return fields.set_error("tools", "holds more than " + std::to_string(kMaxTools) + " tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (!tools[i].is_object())
      return fields.set_error(path, std::string("must be an object, not ") + json_kind(tools[i]));
    FieldReader entry(tools[i], path + ".");
    auto tool = read_tool(entry, out);
    if (!tool) return fields.adopt(*entry.error());
    out.offered.push_back(std::move(*tool));
  }
}

void read_choice(FieldReader& fields, const Json& choice, ToolParams& out) {
  if (!choice.is_object())
    return fields.set_error("tool_choice",
                            std::string("must be an object, not ") + json_kind(choice));
  FieldReader reader(choice, "tool_choice.");
  std::string type;
  bool one_call = false;
  reader.read("type", type, 64);
  if (type == "tool") reader.read("name", out.forced, kMaxTextBytes);
  if (type != "none") reader.read("disable_parallel_tool_use", one_call);
  reader.refuse_unknown();
  if (type != "auto" && type != "any" && type != "tool" && type != "none") {
    reader.set_error("type", "must be auto, any, tool or none");
  }
  const auto offered = [&](const Json& tool) { return tool["function"]["name"] == out.forced; };
  if (type == "tool" && std::none_of(out.offered.begin(), out.offered.end(), offered)) {
    reader.set_error("name", "'" + out.forced.substr(0, kMaxAnthropicToolNameBytes) +
                                 "' is not among the tools");
  }
  if (type == "any" && out.offered.empty())
    reader.set_error("type", "asks for a call, but no tools are offered");
  if (!reader.ok()) return fields.adopt(*reader.error());
  out.required = type == "any" || type == "tool";
  out.parallel_calls = !one_call;
  if (type != "none") return;
  out.offered = Json::array();
  out.strict.clear();
}

}  // namespace

void read_anthropic_tools(FieldReader& fields, ToolParams& out) {
  if (const Json* tools = fields.get("tools")) read_tool_list(fields, *tools, out);
  const Json* choice = fields.get("tool_choice");
  if (choice != nullptr && fields.ok()) read_choice(fields, *choice, out);
}

}  // namespace tailrace
