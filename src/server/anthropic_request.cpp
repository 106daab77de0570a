#include "server/anthropic_request.h"

#include <algorithm>

#include "server/anthropic_content.h"
#include "server/anthropic_tools.h"
#include "server/request_labels.h"

namespace tailrace {
namespace {

constexpr int32_t kMinThinkingBudget = 1024;
constexpr size_t kMaxModelBytes = 1024;

const Json* object_of(FieldReader& fields, const char* name) {
  const Json* value = fields.get(name);
  if (value == nullptr || value->is_object()) return value;
  fields.set_error(name, std::string("must be an object, not ") + json_kind(*value));
  return nullptr;
}

void read_stop_sequences(FieldReader& fields, std::vector<std::string>& out) {
  const Json* value = fields.get("stop_sequences");
  if (value == nullptr) return;
  if (!value->is_array())
    return fields.set_error("stop_sequences",
                            std::string("must be an array, not ") + json_kind(*value));
  if (value->size() > kMaxStopStrings) {
    return fields.set_error("stop_sequences",
                            "holds more than " + std::to_string(kMaxStopStrings) + " strings");
  }
  for (const Json& stop : *value) {
    if (!stop.is_string())
      return fields.set_error("stop_sequences",
                              std::string("must hold strings, not ") + json_kind(stop));
    const auto& text = stop.get_ref<const std::string&>();
    if (text.empty()) return fields.set_error("stop_sequences", "holds an empty string");
    if (text.size() > kMaxStopBytes) {
      return fields.set_error("stop_sequences", "holds a string longer than " +
                                                    std::to_string(kMaxStopBytes) + " bytes");
    }
    out.push_back(text);
  }
}

void read_sampling(FieldReader& fields, GenerationParams& out) {
  if (fields.get("max_tokens") == nullptr) fields.set_error("max_tokens", "is required");
  fields.read("max_tokens", out.max_tokens, 1, INT32_MAX);
  out.end_with_context = true;
  fields.read("stream", out.stream);
  fields.read("temperature", out.temperature, 0, 1);
  fields.read("top_p", out.top_p, 0, 1, /*lo_open=*/true);
  fields.read("top_k", out.top_k, 0, INT32_MAX);
  read_stop_sequences(fields, out.stop);
  read_user_id(fields);
  fields.refuse("service_tier", {Json("auto"), Json("standard_only")}, "there is one tier");
  fields.refuse("container", {}, "no code runs here");
  fields.refuse("diagnostics", {}, "prompts are not compared");
  fields.refuse("inference_geo", {}, "the server is where it is");
}

void read_thinking(FieldReader& fields, MessagesRequest& out) {
  using Thinking = MessagesRequest::Thinking;
  const Json* value = object_of(fields, "thinking");
  if (value == nullptr) return;
  FieldReader reader(*value, "thinking.");
  std::string type;
  reader.read("type", type, 64);
  if (type == "enabled") {
    out.thinking = Thinking::kOn;
    if (reader.get("budget_tokens") == nullptr) reader.set_error("budget_tokens", "is required");
    reader.read("budget_tokens", out.chat.thinking_budget, kMinThinkingBudget, INT32_MAX);
    const auto& max_tokens = out.chat.params.max_tokens;
    if (out.chat.thinking_budget && max_tokens && *out.chat.thinking_budget >= *max_tokens) {
      reader.set_error("budget_tokens", "must be less than max_tokens");
    }
  } else if (type == "adaptive") {
    out.thinking = Thinking::kAdaptive;
  } else if (type == "disabled") {
    out.thinking = Thinking::kOff;
  } else {
    reader.set_error("type", "must be enabled, adaptive or disabled, not '" + type + "'");
  }
  std::string display;
  if (type != "disabled") reader.read("display", display, 64);
  if (!display.empty() && display != "summarized" && display != "omitted") {
    reader.set_error("display", "must be summarized or omitted, not '" + display + "'");
  }
  out.hide_thinking = display == "omitted";
  reader.refuse_unknown();
  if (!reader.ok()) fields.adopt(*reader.error());
}

// {"type": "json_schema", "schema"}; `path` names it in errors.
void read_format(FieldReader& outer, const Json& value, const std::string& path,
                 MessagesRequest& out) {
  FieldReader fields(value, path + ".");
  std::string type;
  fields.read("type", type, 64);
  const Json* schema = fields.get("schema");
  if (type != "json_schema") fields.set_error("type", "must be json_schema");
  if (schema == nullptr) fields.set_error("schema", "is required");
  fields.refuse_unknown();
  AnswerForm form{.body = {}, .field = path + ".schema"};
  if (fields.ok()) take_schema(fields, "schema", *schema, form.body);
  if (!fields.ok()) return outer.adopt(*fields.error());
  if (out.chat.params.form) return outer.set_error(path, "stands beside another format");
  out.chat.params.form = std::move(form);
}

void read_output_config(FieldReader& fields, MessagesRequest& out) {
  if (const Json* format = object_of(fields, "output_format"))
    read_format(fields, *format, "output_format", out);
  const Json* value = object_of(fields, "output_config");
  if (value == nullptr) return;
  FieldReader reader(*value, "output_config.");
  reader.read("effort", out.effort, 64);
  constexpr std::string_view kKnown[] = {"", "low", "medium", "high", "xhigh", "max"};
  if (std::find(std::begin(kKnown), std::end(kKnown), out.effort) == std::end(kKnown)) {
    reader.set_error("effort", "must be low, medium, high, xhigh or max");
  }
  const Json* format = object_of(reader, "format");
  reader.refuse_unknown();
  if (!reader.ok()) return fields.adopt(*reader.error());
  if (format != nullptr) read_format(fields, *format, "output_config.format", out);
}

// Edits that leave a conversation as it is: all thinking is kept.
void read_context_management(FieldReader& fields) {
  const Json* value = object_of(fields, "context_management");
  if (value == nullptr) return;
  FieldReader reader(*value, "context_management.");
  const Json* edits = reader.get("edits");
  reader.refuse_unknown();
  if (edits != nullptr && !edits->is_array()) reader.set_error("edits", "must be an array");
  if (!reader.ok()) return fields.adopt(*reader.error());
  for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    const Json& edit = (*edits)[i];
    const std::string path = "edits[" + std::to_string(i) + "]";
    if (!edit.is_object())
      return fields.set_error("context_management." + path, "must be an object");
    const bool keeps_all = edit.value("type", Json()) == "clear_thinking_20251015" &&
                           (edit.value("keep", Json()) == "all" ||
                            edit.value("keep", Json()) == Json{{"type", "all"}});
    if (keeps_all) continue;
    return fields.set_error(
        "context_management." + path,
        "is not supported: nothing is cleared or summed up here; clear_thinking_20251015 with "
        "\"keep\": \"all\" is taken",
        "unsupported_parameter");
  }
}

void read_conversation(FieldReader& fields, MessagesRequest& out) {
  fields.read("model", out.chat.params.model, kMaxModelBytes);
  if (fields.ok() && out.chat.params.model.empty()) fields.set_error("model", "is required");
  read_cache_control(fields);
  fields.refuse("mcp_servers", {Json::array()}, "no tools run here");
  fields.refuse("speed", {Json("standard")}, "there is one speed");
  read_thinking(fields, out);
  read_output_config(fields, out);
  read_context_management(fields);
  read_anthropic_tools(fields, out.chat.tools);
  const Json* system = fields.get("system");
  const Json* messages = fields.get("messages");
  if (!fields.ok()) return;
  if (messages == nullptr) return fields.set_error("messages", "is required");
  auto converted = messages_from_anthropic(system, *messages);
  if (!converted) return fields.adopt(std::move(converted.error()));
  out.chat.messages = std::move(*converted);
}

ApiExpected<MessagesRequest> parse(std::string_view body, const JsonLimits& limits,
                                   bool generates) {
  auto object = parse_object(body, limits);
  if (!object) return api_fail(object.error());
  FieldReader fields(*object);
  MessagesRequest request;
  if (generates) read_sampling(fields, request.chat.params);
  read_conversation(fields, request);
  fields.refuse_unknown();
  if (generates && fields.ok() && request.chat.messages.back()["role"] == "assistant") {
    fields.set_error("messages",
                     "ends with the assistant's turn: continuing one (prefill) is not supported",
                     "unsupported_parameter");
  }
  if (!fields.ok()) return api_fail(*fields.error());
  return request;
}

}  // namespace

ApiExpected<MessagesRequest> parse_messages_request(std::string_view body,
                                                    const JsonLimits& limits) {
  return parse(body, limits, /*generates=*/true);
}

ApiExpected<MessagesRequest> parse_count_tokens_request(std::string_view body,
                                                        const JsonLimits& limits) {
  return parse(body, limits, /*generates=*/false);
}

}  // namespace tailrace
