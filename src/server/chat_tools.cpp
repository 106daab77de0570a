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

using Names = std::set<std::string>;

Names offered_names(const ToolParams& params) {
  Names out;
  for (const Json& tool : params.offered) out.insert(tool["function"]["name"].get<std::string>());
  return out;
}

// The member "name", one of the offered functions'.
std::string read_offered_name(FieldReader& fields, const Names& offered) {
  std::string name;
  if (fields.get("name") == nullptr) fields.set_error("name", "is required");
  fields.read("name", name, kMaxTextBytes);
  if (fields.ok() && offered.count(name) == 0) {
    fields.set_error("name", "'" + name.substr(0, kMaxToolNameBytes) + "' is not among the tools");
  }
  fields.refuse_unknown();
  return name;
}

// {"type": "function", "function": {"name"}} after its type; nothing else may stand beside them.
std::string read_nested_name(FieldReader& fields, const Names& offered) {
  const Json* function = fields.get("function");
  fields.refuse_unknown();
  if (fields.ok() && (function == nullptr || !function->is_object())) fields.set_error("function", "must be an object");
  if (!fields.ok()) return "";
  FieldReader inner(*function, fields.path("function."));
  std::string name = read_offered_name(inner, offered);
  if (!inner.ok()) fields.adopt(*inner.error());
  return name;
}

// An object as tool_choice: {"type": "function", "function"} or {"type": "allowed_tools", "allowed_tools"}.
void read_choice_object(FieldReader& fields, const Json& choice, ToolParams& out) {
  FieldReader reader(choice, "tool_choice.");
  std::string type;
  reader.read("type", type, 64);
  if (reader.ok() && type == "function") {
    out.forced = read_nested_name(reader, offered_names(out));
  } else if (reader.ok() && type == "allowed_tools") {
    const Json* allowed = reader.get("allowed_tools");
    if (allowed == nullptr || !allowed->is_object()) reader.set_error("allowed_tools", "must be an object");
    reader.refuse_unknown();
    if (!reader.ok()) return fields.adopt(*reader.error());
    FieldReader inner(*allowed, "tool_choice.allowed_tools.");
    read_allowed_tools(inner, /*nested=*/true, out);
    if (!inner.ok()) reader.adopt(*inner.error());
  } else if (reader.ok()) {
    reader.set_error("type", "must be function or allowed_tools", "unsupported_parameter");
  }
  if (!reader.ok()) fields.adopt(*reader.error());
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
  fields.ignore("index", "a number");  // of the stream that the call was collected from
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
  out.forced = read_offered_name(fields, offered_names(out));
}

void read_allowed_tools(FieldReader& fields, bool nested, ToolParams& out) {
  std::string mode;
  fields.read("mode", mode, 64);
  if (mode != "auto" && mode != "required") fields.set_error("mode", "must be auto or required");
  const Json* tools = fields.get("tools");
  fields.refuse_unknown();
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    fields.set_error("tools", "must be an array of functions, at least one");
  }
  const Names offered = offered_names(out);
  Names names;
  for (size_t i = 0; fields.ok() && i < tools->size(); ++i) {
    const std::string path = fields.path(at("tools", i));
    if (!(*tools)[i].is_object()) return fields.adopt(not_object(path, (*tools)[i]).value());
    FieldReader entry((*tools)[i], path + ".");
    std::string type;
    entry.read("type", type, 64);
    if (type != "function") entry.set_error("type", "must be function", "unsupported_parameter");
    names.insert(nested ? read_nested_name(entry, offered) : read_offered_name(entry, offered));
    if (!entry.ok()) fields.adopt(*entry.error());
  }
  if (!fields.ok()) return;
  const auto left_out = [&](const Json& tool) { return names.count(tool["function"]["name"]) == 0; };
  out.offered.erase(std::remove_if(out.offered.begin(), out.offered.end(), left_out), out.offered.end());
  std::erase_if(out.strict, [&](const std::string& name) { return names.count(name) == 0; });
  out.required = mode == "required";
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
    fields.set_error("tool_choice", "is among tools, but none are offered");
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
  if (const Json* choice = read_tool_choice(fields, out); choice != nullptr) {
    read_choice_object(fields, *choice, out);
  }
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
