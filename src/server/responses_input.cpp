#include "server/responses_input.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "server/json_fields.h"
#include "server/reasoning_seal.h"

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower
constexpr size_t kMaxItems = 1 << 16;
constexpr size_t kMaxItemIdBytes = 256;

ApiError fault(const std::string& path, const std::string& message, const char* code = "invalid_value") {
  return {400, path + " " + message, path, code};
}

using PartTypes = std::initializer_list<std::string_view>;

// One part's text. Annotations and log probabilities of earlier answers, and what client libraries parsed of them, say
// nothing to the model.
ApiExpected<std::string> part_text(const Json& part, const std::string& path, PartTypes types) {
  if (!part.is_object()) return api_fail(fault(path, std::string("must be an object, not ") + json_kind(part)));
  FieldReader fields(part, path + ".");
  std::string type, text;
  fields.read("type", type, 64);
  if (fields.ok() && type.empty()) fields.set_error("type", "is required");
  if (fields.ok() && std::find(types.begin(), types.end(), type) == types.end()) {
    const bool refusal = type == "refusal";
    fields.set_error("type",
                     "'" + type + "' is not supported here: " +
                         (refusal ? "send its text as an output_text part" : "this model reads text only"),
                     "unsupported_content");
  }
  if (fields.ok() && fields.get("text") == nullptr) fields.set_error("text", "is required");
  fields.read("text", text, kMaxTextBytes);
  fields.ignore("annotations", "an array");
  fields.ignore("logprobs", "an array");
  fields.ignore("parsed");  // added by client libraries
  fields.ignore("prompt_cache_breakpoint", "an object");
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return text;
}

// A text, or the texts of parts joined.
ApiExpected<std::string> text_of(const Json* value, const std::string& path, PartTypes types) {
  if (value == nullptr) return api_fail(fault(path, "is required"));
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) {
    return api_fail(fault(path, std::string("must be a string or an array of parts, not ") + json_kind(*value)));
  }
  std::string out;
  for (size_t i = 0; i < value->size(); ++i) {
    auto text = part_text((*value)[i], path + "[" + std::to_string(i) + "]", types);
    if (!text) return text;
    out += *text;
  }
  return out;
}

}  // namespace

// What items carry for their own bookkeeping. Ids are what pages of stored input go by.
void ResponsesConversation::read_item_labels(FieldReader& fields) {
  std::string id, status;
  fields.ignore("type");
  fields.read("id", id, kMaxItemIdBytes);
  fields.read("status", status, 64);
  if (!status.empty() && status != "in_progress" && status != "completed" && status != "incomplete") {
    fields.set_error("status", "must be in_progress, completed or incomplete");
  }
  if (fields.ok() && !id.empty() && !ids_.insert(id).second) {
    fields.set_error("id", "is that of an earlier item too: each item is to be sent once");
  }
  fields.refuse("caller", {Json{{"type", "direct"}}}, "there are no programs that call tools");
}

void ResponsesConversation::add_instructions(const std::string& text) {
  if (!text.empty()) messages_.push_back({{"role", "system"}, {"content", text}});
}

std::optional<ApiError> ResponsesConversation::add_items(const Json& items, const std::string& path) {
  if (items.size() > kMaxItems) return fault(path, "holds too many items");
  for (size_t i = 0; i < items.size(); ++i) {
    if (auto error = add_item(items[i], path + "[" + std::to_string(i) + "]")) return error;
  }
  return std::nullopt;
}

std::optional<ApiError> ResponsesConversation::add_item(const Json& item, const std::string& path) {
  if (!item.is_object()) return fault(path, std::string("must be an object, not ") + json_kind(item));
  const auto found = item.find("type");
  if (found == item.end() || found->is_null() || *found == "message") return add_message(item, path);
  if (*found == "function_call") return add_call(item, path);
  if (*found == "function_call_output") return add_call_output(item, path);
  if (*found == "reasoning") return add_reasoning(item, path);
  const std::string shown = found->is_string() ? found->get<std::string>().substr(0, 64) : json_kind(*found);
  return fault(path + ".type",
               "'" + shown + "' is not supported: message, function_call, function_call_output and reasoning are",
               "unsupported_content");
}

std::optional<ApiError> ResponsesConversation::add_message(const Json& item, const std::string& path) {
  FieldReader fields(item, path + ".");
  std::string role;
  fields.read("role", role, 64);
  read_item_labels(fields);
  fields.ignore("phase", "a string");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    fields.set_error("role",
                     role.empty() ? "is required" : "must be system, developer, user or assistant, not '" + role + "'");
  }
  const Json* content = fields.get("content");
  fields.refuse_unknown();
  if (!fields.ok()) return fields.error();
  auto text = text_of(content, path + ".content", {"input_text", "output_text"});
  if (!text) return text.error();
  if (role == "assistant") {
    assistant(assistant_.is_object() && (assistant_["content"] != "" || assistant_.contains("tool_calls")))["content"] =
        *text;
    return std::nullopt;
  }
  end_assistant();
  messages_.push_back({{"role", role}, {"content", std::move(*text)}});
  return std::nullopt;
}

std::optional<ApiError> ResponsesConversation::add_call(const Json& item, const std::string& path) {
  FieldReader fields(item, path + ".");
  std::string id, name, arguments;
  fields.read("call_id", id, kMaxCallIdBytes);
  fields.read("name", name, kMaxTextBytes);
  fields.read("arguments", arguments, kMaxTextBytes);
  std::string space;
  fields.read("namespace", space, kMaxToolNameBytes);
  read_item_labels(fields);
  fields.ignore("parsed_arguments");  // added by client libraries
  fields.refuse("async", {Json(false)}, "calls are answered before the model goes on");
  fields.refuse_unknown();
  if (fields.ok() && id.empty()) fields.set_error("call_id", "is required");
  auto call = make_call(fields, id, name, arguments, calls_);
  if (!call) return call.error();
  if (!space.empty()) (*call)["function"]["name"] = NamespacedName{space, name}.joined();
  Json& message = assistant(/*closed=*/false);
  if (message.contains("tool_calls") && message["tool_calls"].size() >= kMaxCallsPerMessage) {
    return fault(path, "is one call too many of one message");
  }
  message["tool_calls"].push_back(std::move(*call));
  return std::nullopt;
}

std::optional<ApiError> ResponsesConversation::add_call_output(const Json& item, const std::string& path) {
  FieldReader fields(item, path + ".");
  std::string id;
  fields.read("call_id", id, kMaxCallIdBytes);
  read_item_labels(fields);
  fields.ignore("name", "a string");
  const Json* output = fields.get("output");
  fields.refuse_unknown();
  if (fields.ok() && calls_.ids.count(id) == 0) {
    fields.set_error("call_id", id.empty() ? "is required" : "is of no call in an earlier item");
  }
  if (!fields.ok()) return fields.error();
  auto text = text_of(output, path + ".output", {"input_text", "output_text"});
  if (!text) return text.error();
  end_assistant();
  messages_.push_back({{"role", "tool"}, {"content", std::move(*text)}, {"tool_call_id", id}});
  return std::nullopt;
}

// The reasoning is what stands open, or else what was sealed here, or else what a summary tells of it.
std::optional<ApiError> ResponsesConversation::add_reasoning(const Json& item, const std::string& path) {
  FieldReader fields(item, path + ".");
  read_item_labels(fields);
  const Json *content = fields.get("content"), *summary = fields.get("summary");
  std::string sealed;
  fields.read("encrypted_content", sealed, kMaxTextBytes);
  fields.refuse_unknown();
  if (!fields.ok()) return fields.error();
  const Json none = Json::array();
  auto text = text_of(content == nullptr ? &none : content, path + ".content", {"reasoning_text", "text"});
  if (!text) return text.error();
  if (text->empty() && !sealed.empty()) {
    auto opened = open_reasoning(sealed);
    if (!opened) {
      return fault(path + ".encrypted_content", "was not made by this server", "invalid_encrypted_content");
    }
    *text = std::move(*opened);
  }
  if (text->empty()) text = text_of(summary == nullptr ? &none : summary, path + ".summary", {"summary_text"});
  if (!text) return text.error();
  if (text->empty()) return std::nullopt;
  Json& message =
      assistant(assistant_.is_object() && (assistant_["content"] != "" || assistant_.contains("tool_calls")));
  Json& reasoning = message["reasoning_content"];
  if (reasoning.is_null()) reasoning = "";
  auto& joined = reasoning.get_ref<std::string&>();  // in place: items may be many
  if (!joined.empty()) joined += "\n\n";
  joined += *text;
  return std::nullopt;
}

Json& ResponsesConversation::assistant(bool closed) {
  if (closed) end_assistant();
  if (!assistant_.is_object()) assistant_ = {{"role", "assistant"}, {"content", ""}};
  return assistant_;
}

void ResponsesConversation::end_assistant() {
  if (assistant_.is_object()) messages_.push_back(std::exchange(assistant_, nullptr));
}

Json ResponsesConversation::take_messages() {
  end_assistant();
  Json out = Json::array();
  for (Json& message : std::exchange(messages_, Json::array())) {
    const bool more = out.size() == 1 && out[0]["role"] == "system" && message["role"] == "system";
    if (!more) {
      out.push_back(std::move(message));
      continue;
    }
    out[0]["content"].get_ref<std::string&>() += "\n\n" + message["content"].get_ref<const std::string&>();
  }
  return out;
}

Json input_items(const Json& input, const std::string& token) {
  Json out = Json::array();
  const Json text = Json{{"role", "user"}, {"content", input}};
  for (const Json& given : input.is_string() ? Json::array({text}) : input) {
    Json item = {{"type", given.value("type", Json(nullptr))}, {"id", given.value("id", Json(nullptr))}};
    if (item["type"].is_null()) item["type"] = "message";
    if (item["id"].is_null() || item["id"] == "")
      item["id"] = (item["type"] == "message" ? "msg_in_" : "item_in_") + token + std::to_string(out.size());
    for (const auto& [name, value] : given.items()) {
      if (name != "type" && name != "id") item[name] = value;
    }
    if (item["type"] == "message" && item["content"].is_string()) {
      const char* type = item["role"] == "assistant" ? "output_text" : "input_text";
      item["content"] = Json::array({{{"type", type}, {"text", item["content"]}}});
    }
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace tailrace
