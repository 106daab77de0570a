#include "server/responses_request.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/json_fields.h"
#include "server/request_labels.h"

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower

// The value as it was sent, or what stands for its absence.
void repeat(ResponsesRequest& out, FieldReader& fields, const char* name, Json absent = nullptr) {
  const Json* value = fields.get(name);
  out.echo[name] = value == nullptr ? std::move(absent) : *value;
}

constexpr std::string_view kLogprobs = "message.output_text.logprobs", kEncrypted = "reasoning.encrypted_content";

void read_include(FieldReader& fields, ResponsesRequest& out, bool& logprobs) {
  const Json* include = fields.get("include");
  if (include == nullptr) return;
  if (!include->is_array())
    return fields.set_error("include", std::string("must be an array, not ") + json_kind(*include));
  for (size_t i = 0; i < include->size(); ++i) {
    const std::string at = "include[" + std::to_string(i) + "]";
    const Json& entry = (*include)[i];
    if (!entry.is_string()) return fields.set_error(at, std::string("must be a string, not ") + json_kind(entry));
    const auto& name = entry.get_ref<const std::string&>();
    logprobs |= name == kLogprobs;
    out.encrypted_reasoning |= name == kEncrypted;
    if (!is_includable(name)) return fields.set_error(at, unknown_include(name));
  }
}

void read_logprobs(FieldReader& fields, ResponsesRequest& out) {
  bool wanted = false;
  read_include(fields, out, wanted);
  std::optional<int32_t> top;
  fields.read("top_logprobs", top, 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) {
    return fields.set_error("top_logprobs", "needs \"message.output_text.logprobs\" in include");
  }
  if (wanted) out.chat.params.num_top_logprobs = top.value_or(0);
  out.echo["top_logprobs"] = top.value_or(0);
}

void read_reasoning(FieldReader& fields, ResponsesRequest& out) {
  out.echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* value = fields.get("reasoning");
  if (value == nullptr) return;
  if (!value->is_object())
    return fields.set_error("reasoning", std::string("must be an object, not ") + json_kind(*value));
  FieldReader inner(*value, "reasoning.");
  std::string& effort = out.chat.reasoning_effort;
  inner.read("effort", effort, 64);
  if (inner.ok() && !effort.empty() && !is_reasoning_effort(effort)) {
    inner.set_error("effort", "must be none, minimal, low, medium, high or xhigh");
  }
  for (const char* name : {"summary", "generate_summary"}) {
    inner.refuse(name, {Json("auto")}, "the reasoning itself is returned, and no summary is written");
  }
  inner.refuse("context", {Json("auto"), Json("all_turns")}, "all reasoning that is sent goes to the template");
  inner.refuse("mode", {Json("standard")}, "there is one mode");
  inner.refuse_unknown();
  if (!inner.ok()) return fields.adopt(*inner.error());
  if (!effort.empty()) out.echo["reasoning"]["effort"] = effort;
}

// {"type": "json_schema", "name", "schema", "strict", "description"}
void read_schema_format(FieldReader& format, std::optional<AnswerForm>& out) {
  std::string name, description;
  bool strict = false;  // either way the schema is kept
  format.read("name", name, 64);
  format.read("description", description, kMaxSchemaBytes);
  format.read("strict", strict);
  const Json* schema = format.get("schema");
  if (format.ok() && name.empty()) format.set_error("name", "is required");
  if (format.ok() && schema == nullptr) format.set_error("schema", "is required");
  if (!format.ok()) return;
  out.emplace().field = "text.format.schema";
  take_schema(format, "schema", *schema, out->body);
}

void read_format(FieldReader& text, std::optional<AnswerForm>& out) {
  const Json* value = text.get("format");
  if (value == nullptr) return;
  if (!value->is_object()) return text.set_error("format", std::string("must be an object, not ") + json_kind(*value));
  FieldReader format(*value, "text.format.");
  std::string type;
  format.read("type", type, 64);
  if (format.ok() && type == "json_schema") read_schema_format(format, out);
  if (format.ok() && type == "json_object") out = AnswerForm{any_json_object(), "text.format"};
  if (format.ok() && type != "text" && type != "json_object" && type != "json_schema") {
    format.set_error("type", "must be text, json_object or json_schema");
  }
  format.refuse_unknown();
  if (!format.ok()) text.adopt(*format.error());
}

void read_text(FieldReader& fields, ResponsesRequest& out) {
  out.echo["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  const Json* value = fields.get("text");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.set_error("text", std::string("must be an object, not ") + json_kind(*value));
  FieldReader text(*value, "text.");
  read_format(text, out.chat.params.form);
  text.refuse("verbosity", {Json("medium")}, "use the instructions to ask for it");
  text.refuse_unknown();
  if (!text.ok()) return fields.adopt(*text.error());
  if (const Json* format = text.get("format")) out.echo["text"]["format"] = *format;
}

// Reads the tools of a request.
class ToolReader {
 public:
  explicit ToolReader(ToolParams& out) : out_(out) {}

  std::optional<ApiError> read(const Json& tools) {
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string at = "tools[" + std::to_string(i) + "]";
      const std::string type = type_of(tools[i]);
      auto error = type == "function"    ? add_function(tools[i], at)
                   : type == "namespace" ? add_namespace(tools[i], at)
                                         : wrong_kind(tools[i], at, type, "only 'function' and 'namespace' are");
      if (error) return error;
    }
    return std::nullopt;
  }

 private:
  static std::string type_of(const Json& tool) {
    std::string type;
    if (tool.is_object()) FieldReader(tool).read("type", type, 64);
    return type;
  }

  static ApiError wrong_kind(const Json& tool, const std::string& at, const std::string& type, const char* served) {
    if (!tool.is_object()) return bad_field(at, at + " must be an object, not " + json_kind(tool)).value();
    const std::string what = type.empty() ? " must be 'function'" : " '" + type + "' is not served: " + served;
    return bad_field(at + ".type", at + ".type" + what, "unsupported_parameter").value();
  }

  std::optional<ApiError> offer(Json function, const std::string& at) {
    if (out_.offered.size() >= kMaxTools)
      return bad_field("tools", "tools holds more than " + std::to_string(kMaxTools) + " functions").value();
    const std::string name = function["name"];
    if (!names_.insert(name).second)
      return bad_field(at + ".name", at + ".name '" + name + "' is offered twice").value();
    out_.offered.push_back({{"type", "function"}, {"function", std::move(function)}});
    return std::nullopt;
  }

  // {"type": "function", "name", "description", "parameters", "strict"}
  std::optional<ApiError> add_function(const Json& tool, const std::string& at) {
    std::set<std::string> names;
    auto function = check_function(tool, at, names, out_.strict, /*typed=*/true);
    return function ? offer(std::move(*function), at) : std::optional(std::move(function.error()));
  }

  // {"type": "namespace", "name", "description", "tools"}. What it says of itself stands before what its first function
  // says: templates know no namespaces.
  std::optional<ApiError> add_namespace(const Json& tool, const std::string& at) {
    FieldReader fields(tool, at + ".");
    std::string space, description;
    fields.ignore("type");
    fields.read("name", space, kMaxToolNameBytes);
    fields.read("description", description, kMaxTextBytes);
    const Json* tools = fields.get("tools");
    fields.refuse_unknown();
    if (fields.ok() && space.empty()) fields.set_error("name", "is required");
    if (fields.ok() && (tools == nullptr || !tools->is_array())) fields.set_error("tools", "must be an array");
    if (!fields.ok()) return fields.error();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string inner = at + ".tools[" + std::to_string(i) + "]";
      const std::string type = type_of((*tools)[i]);
      if (type != "function") return wrong_kind((*tools)[i], inner, type, "only 'function' is");
      std::set<std::string> names, strict;
      auto function = check_function((*tools)[i], inner, names, strict, /*typed=*/true);
      if (!function) return std::move(function.error());
      const NamespacedName name{space, (*function)["name"]};
      (*function)["name"] = name.joined();
      if (i == 0 && !description.empty()) {
        const std::string own = function->value("description", "");
        (*function)["description"] = description + (own.empty() ? "" : "\n\n" + own);
      }
      if (!strict.empty()) out_.strict.insert(name.joined());
      out_.namespaced[name.joined()] = name;
      if (auto error = offer(std::move(*function), inner)) return error;
    }
    return std::nullopt;
  }

  ToolParams& out_;
  std::set<std::string> names_;
};

void read_functions(FieldReader& fields, ToolParams& out) {
  const Json* tools = fields.get("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields.set_error("tools", std::string("must be an array, not ") + json_kind(*tools));
  if (auto error = ToolReader(out).read(*tools)) fields.adopt(std::move(*error));
}

void read_choice(FieldReader& fields, ToolParams& out) {
  const Json* choice = read_tool_choice(fields, out);
  if (choice == nullptr) return;
  FieldReader named(*choice, "tool_choice.");
  std::string type;
  named.read("type", type, 64);
  if (named.ok() && type == "allowed_tools") {
    read_allowed_tools(named, /*nested=*/false, out);
  } else if (named.ok() && type == "function") {
    read_forced_name(named, out);
  } else if (named.ok()) {
    named.set_error("type", "must be function or allowed_tools", "unsupported_parameter");
  }
  if (!named.ok()) fields.adopt(*named.error());
}

void read_stream(FieldReader& fields, bool& stream) {
  fields.read("stream", stream);
  const Json* value = fields.get("stream_options");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.set_error("stream_options", std::string("must be an object, not ") + json_kind(*value));
  }
  if (!stream) return fields.set_error("stream_options", "is only allowed together with \"stream\": true");
  FieldReader options(*value, "stream_options.");
  options.refuse("include_obfuscation", {Json(false)}, "events are not padded");
  options.refuse_unknown();
  if (!options.ok()) fields.adopt(*options.error());
}

void read_store(FieldReader& fields, bool may_store, bool& out) {
  std::optional<bool> store;
  fields.read("store", store);
  if (store.value_or(false) && !may_store) {
    return fields.set_error("store", "cannot be: --max-stored-responses is 0 here", "unsupported_parameter");
  }
  out = store.value_or(may_store);
}

void refuse_features(FieldReader& fields) {
  fields.refuse("background", {Json(false)}, "wait for the answer, or stream it");
  fields.refuse("conversation", {}, "use previous_response_id");
  fields.refuse("context_management", {Json::array()}, "nothing is compacted");
  fields.refuse("prompt", {}, "there are no stored prompts: put the text into instructions and input");
  fields.refuse("truncation", {Json("disabled")}, "nothing is cut from a conversation");
  fields.refuse("moderation", {}, "there is no moderation");
}

void read_input(FieldReader& fields, ResponsesRequest& out) {
  const Json* input = fields.get("input");
  if (!fields.ok()) return;
  if (input != nullptr && !input->is_string() && !input->is_array()) {
    return fields.set_error("input", std::string("must be a string or an array of items, not ") + json_kind(*input));
  }
  out.input = input == nullptr || *input == "" ? Json::array() : *input;
  if (out.input.empty() && out.previous_id.empty()) {
    return fields.set_error("input", "is required where no previous_response_id is gone on from");
  }
}

// What makes the prompt.
void read_prompt(FieldReader& fields, ResponsesRequest& out) {
  fields.read("model", out.chat.params.model, 1024);
  read_template_kwargs(fields, out.chat.template_kwargs);
  read_reasoning(fields, out);
  read_text(fields, out);
  read_functions(fields, out.chat.tools);
  repeat(out, fields, "tools", Json::array());
  read_choice(fields, out.chat.tools);
  repeat(out, fields, "tool_choice", "auto");
  fields.read("parallel_tool_calls", out.chat.tools.parallel_calls);
  out.echo["parallel_tool_calls"] = out.chat.tools.parallel_calls;
  fields.read("instructions", out.instructions, kMaxTextBytes);
  fields.read("previous_response_id", out.previous_id, 256);
  read_input(fields, out);
}

}  // namespace

bool is_includable(std::string_view name) {
  // Asking for more of what no answer here has is nothing to refuse.
  constexpr std::string_view kOfOtherTools[] = {
      "web_search_call.action.sources",        "web_search_call.results",  "code_interpreter_call.outputs",
      "computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url"};
  return name == kLogprobs || name == kEncrypted ||
         std::count(std::begin(kOfOtherTools), std::end(kOfOtherTools), name) > 0;
}

std::string unknown_include(const std::string& name) {
  return "is '" + name.substr(0, 64) + "', which this server does not know: " + std::string(kLogprobs) + " and " +
         std::string(kEncrypted) + " are served";
}

ApiExpected<ResponsesRequest> parse_responses_request(std::string_view body, const RequestBounds& bounds,
                                                      bool may_store, const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  ResponsesRequest out;
  FieldReader fields(*object);
  GenerationParams& params = out.chat.params;
  read_stream(fields, params.stream);
  fields.read("max_output_tokens", params.max_tokens, 1, INT32_MAX);
  read_sampling_params(fields, bounds, params);
  read_labels(fields);
  read_prompt(fields, out);
  std::optional<int64_t> max_tool_calls;  // of tools that the server itself would run: there are none
  fields.read("max_tool_calls", max_tool_calls, 1, INT32_MAX);
  read_logprobs(fields, out);
  read_store(fields, may_store, out.store);
  refuse_features(fields);
  fields.ignore("client_metadata", "an object");
  for (const char* name : {"instructions", "max_output_tokens", "max_tool_calls", "previous_response_id",
                           "prompt_cache_key", "safety_identifier", "user"}) {
    repeat(out, fields, name);
  }
  repeat(out, fields, "metadata", Json::object());
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return out;
}

ApiExpected<ResponsesRequest> parse_input_tokens_request(std::string_view body, const JsonLimits& limits) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  ResponsesRequest out;
  FieldReader fields(*object);
  read_prompt(fields, out);
  fields.refuse("conversation", {}, "use previous_response_id");
  fields.refuse("truncation", {Json("disabled")}, "nothing is cut from a conversation");
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return out;
}

}  // namespace tailrace
