#include "server/chat_tools.h"

#include <algorithm>
#include <cctype>

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower

std::string at(const std::string& path, size_t index) { return path + "[" + std::to_string(index) + "]"; }

void check_name(FieldReader& fields, const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMaxToolNameBytes &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                    });
  if (!good) {
    fields.set_error("name",
                     "must be 1 to " + std::to_string(kMaxToolNameBytes) + " of A-Z, a-z, 0-9, '_', '-' and '.'");
  }
}

tl::unexpected<ApiError> not_object(const std::string& path, const Json& value) {
  return bad_field(path, path + " must be an object, not " + json_kind(value));
}

// One entry of `tools`, without null members.
ApiExpected<Json> check_tool(const Json& tool, const std::string& path, std::set<std::string>& names,
                             std::set<std::string>& strict_names) {
  if (!tool.is_object()) return not_object(path, tool);
  FieldReader fields(tool, path + ".");
  std::string type;
  fields.read("type", type, 64);
  if (fields.ok() && type != "function") {
    fields.set_error("type", "must be 'function': other kinds of tools are not served", "unsupported_parameter");
  }
  const Json* function = fields.get("function");
  fields.refuse_unknown();
  if (fields.ok() && function == nullptr) fields.set_error("function", "is required");
  if (!fields.ok()) return api_fail(*fields.error());
  const std::string inner_path = path + ".function";
  if (!function->is_object()) return not_object(inner_path, *function);
  auto checked = check_function(*function, inner_path, names, strict_names);
  if (!checked) return api_fail(checked.error());
  return Json{{"type", "function"}, {"function", std::move(*checked)}};
}

ApiExpected<Json> check_tools(const Json& tools, std::set<std::string>& strict) {
  if (!tools.is_array()) return bad_field("tools", std::string("tools must be an array, not ") + json_kind(tools));
  if (tools.size() > kMaxTools) {
    return bad_field("tools", "tools holds more than " + std::to_string(kMaxTools) + " functions");
  }
  Json out = Json::array();
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    auto tool = check_tool(tools[i], at("tools", i), names, strict);
    if (!tool) return api_fail(tool.error());
    out.push_back(std::move(*tool));
  }
  return out;
}

// {"type": "function", "function": {"name"}}
void read_named_choice(FieldReader& fields, const Json& choice, ToolParams& out) {
  FieldReader named(choice, "tool_choice.");
  std::string type;
  named.read("type", type, 64);
  if (named.ok() && type != "function") named.set_error("type", "must be 'function'", "unsupported_parameter");
  const Json* function = named.get("function");
  named.refuse_unknown();
  if (named.ok() && (function == nullptr || !function->is_object())) named.set_error("function", "must be an object");
  if (!named.ok()) return fields.adopt(*named.error());
  FieldReader inner(*function, "tool_choice.function.");
  read_forced_name(inner, out);
  inner.refuse_unknown();
  if (!inner.ok()) fields.adopt(*inner.error());
}


size_t count_values(const Json& json) {
  size_t count = 1;
  if (!json.is_structured()) return count;
  for (const Json& value : json) count += count_values(value);
  return count + (json.is_object() ? json.size() : 0);
}

// The call's arguments, JSON as text.
Json parse_arguments(FieldReader& fields, const std::string& text, CallHistory& history) {
  if (text.find_first_not_of(" \n\r\t") == std::string::npos) return Json::object();  // a call without arguments
  JsonLimits limits;
  limits.max_values = history.values_left;
  auto parsed = parse_json(text, limits);
  if (!parsed) {
    fields.set_error("arguments", "must be a JSON object as text: " + parsed.error().message);
    return {};
  }
  if (!parsed->is_object()) {
    fields.set_error("arguments", std::string("must be a JSON object as text, not ") + json_kind(*parsed));
    return {};
  }
  history.values_left -= std::min(history.values_left, count_values(*parsed));
  return std::move(*parsed);
}

ApiExpected<Json> check_call(const Json& call, const std::string& path, CallHistory& history) {
  if (!call.is_object()) return not_object(path, call);
  FieldReader fields(call, path + ".");
  std::string id, type = "function";
  fields.read("id", id, kMaxCallIdBytes);
  fields.read("type", type, 64);
  fields.ignore("index");  // of the stream that the call was collected from
  const Json* function = fields.get("function");
  fields.refuse_unknown();
  if (fields.ok() && id.empty()) fields.set_error("id", "is required");
  if (fields.ok() && type != "function") fields.set_error("type", "must be 'function'", "unsupported_parameter");
  if (fields.ok() && function == nullptr) fields.set_error("function", "is required");
  if (!fields.ok()) return api_fail(*fields.error());
  const std::string inner_path = path + ".function";
  if (!function->is_object()) return not_object(inner_path, *function);
  FieldReader inner(*function, inner_path + ".");
  std::string name, text;
  inner.read("name", name, kMaxTextBytes);
  inner.read("arguments", text, kMaxTextBytes);
  inner.refuse_unknown();
  return make_call(inner, id, name, text, history);
}

}  // namespace

ApiExpected<Json> check_function(const Json& function, const std::string& path, std::set<std::string>& names,
                                 std::set<std::string>& strict_names, bool typed) {
  FieldReader fields(function, path + ".");
  if (typed) fields.ignore("type");
  std::string name, description;
  fields.read("name", name, kMaxTextBytes);
  fields.read("description", description, kMaxTextBytes);
  const Json* parameters = fields.get("parameters");
  bool strict = false;
  fields.read("strict", strict);
  fields.refuse_unknown();
  if (fields.ok()) check_name(fields, name);
  if (fields.ok() && parameters != nullptr && !parameters->is_object()) {
    fields.set_error("parameters", "must be an object");
  }
  if (fields.ok() && !names.insert(name).second) fields.set_error("name", "'" + name + "' is offered twice");
  if (!fields.ok()) return api_fail(*fields.error());
  if (strict) strict_names.insert(name);
  Json out = Json::object();
  for (const auto& [key, value] : function.items()) {
    if (!value.is_null() && key != "strict" && key != "type") out[key] = value;
  }
  return out;
}

void read_forced_name(FieldReader& fields, ToolParams& out) {
  fields.read("name", out.forced, kMaxTextBytes);
  const auto offered = [&](const Json& tool) { return tool["function"]["name"] == out.forced; };
  if (fields.ok() && std::none_of(out.offered.begin(), out.offered.end(), offered)) {
    fields.set_error("name", "'" + out.forced.substr(0, kMaxToolNameBytes) + "' is not among the tools");
  }
}

ApiExpected<Json> make_call(FieldReader& fields, const std::string& id, const std::string& name,
                            const std::string& arguments, CallHistory& history) {
  if (fields.ok()) check_name(fields, name);
  Json parsed;
  if (fields.ok()) parsed = parse_arguments(fields, arguments, history);
  if (!fields.ok()) return api_fail(*fields.error());
  history.ids.insert(id);
  return Json{{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(parsed)}}}};
}

const Json* read_tool_choice(FieldReader& fields, ToolParams& out) {
  const Json* choice = fields.get("tool_choice");
  if (choice == nullptr || *choice == "auto") return nullptr;
  if (*choice == "none") {
    out.offered = Json::array();
    out.strict.clear();
    return nullptr;
  }
  out.required = *choice == "required" || choice->is_object();
  if (!out.required) {
    fields.set_error("tool_choice", "must be \"none\", \"auto\", \"required\" or an object");
  } else if (out.offered.empty()) {
    fields.set_error("tool_choice", "asks for a call, but no tools are offered");
  } else if (choice->is_object()) {
    return choice;
  }
  return nullptr;
}

void read_tools(FieldReader& fields, ToolParams& out) {
  if (const Json* tools = fields.get("tools")) {
    auto checked = check_tools(*tools, out.strict);
    if (!checked) return fields.adopt(std::move(checked.error()));
    out.offered = std::move(*checked);
  }
  if (const Json* choice = read_tool_choice(fields, out); choice != nullptr) read_named_choice(fields, *choice, out);
  fields.read("parallel_tool_calls", out.parallel_calls);
}

ApiExpected<Json> check_tool_calls(const Json& calls, const std::string& path, CallHistory& history) {
  if (!calls.is_array()) return bad_field(path, path + " must be an array, not " + json_kind(calls));
  if (calls.size() > kMaxCallsPerMessage) return bad_field(path, path + " holds too many calls");
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    auto call = check_call(calls[i], at(path, i), history);
    if (!call) return api_fail(call.error());
    out.push_back(std::move(*call));
  }
  return out;
}

}  // namespace tailrace
