#include "server/chat_messages.h"

#include <string>

#include "server/json_fields.h"
#include "server/openai_request.h"

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower

tl::unexpected<ApiError> fault(const std::string& path, const std::string& message,
                               const char* code = "invalid_value") {
  return bad_field(path, path + " " + message, code);
}

ApiExpected<std::string> join_parts(const Json& parts, const std::string& path) {
  std::string text;
  if (parts.empty()) return fault(path, "is an empty array");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    const Json& part = parts[i];
    if (!part.is_object()) return fault(part_path, std::string("must be an object, not ") + json_kind(part));
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return fault(part_path + ".type", "is required");
    if (*type != "text") {
      return fault(part_path + ".type",
                       "'" + type->get<std::string>().substr(0, 100) + "' is not supported: this model reads text only",
                       "unsupported_content");
    }
    const auto content = part.find("text");
    if (content == part.end() || !content->is_string()) return fault(part_path + ".text", "must be a string");
    for (const auto& [name, value] : part.items()) {
      if (name != "type" && name != "text" && !value.is_null()) {
        return fault(part_path + "." + name.substr(0, 100), "is not a field this server knows", "unknown_parameter");
      }
    }
    text += content->get_ref<const std::string&>();
  }
  return text;
}

ApiExpected<Json> check_message(const Json& message, const std::string& path) {
  if (!message.is_object()) return fault(path, std::string("must be an object, not ") + json_kind(message));
  FieldReader fields(message, path + ".");
  std::string role, name, reasoning;
  fields.read("role", role, 64);
  if (fields.ok() && role.empty()) fields.set_error("role", "is required");
  if (role == "tool" || role == "function") fields.set_error("role", "'" + role + "' is not supported: no tools yet");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    fields.set_error("role", "must be system, developer, user or assistant, not '" + role + "'");
  }
  fields.read("name", name, 256);
  fields.read("reasoning_content", reasoning, kMaxTextBytes);
  fields.refuse("tool_calls", {Json::array()}, "this server does not call tools yet");
  fields.refuse("tool_call_id", {}, "this server does not call tools yet");
  fields.refuse("function_call", {}, "this server does not call functions");
  fields.refuse("audio", {}, "text only");
  fields.refuse("refusal", {}, "put the text into content");
  fields.refuse("annotations", {Json::array()}, "text only");
  const Json* content = fields.get("content");
  fields.refuse_unknown();
  if (fields.ok() && content == nullptr) fields.set_error("content", "is required");
  if (!fields.ok()) return api_fail(*fields.error());

  Json out = {{"role", role}};
  if (content->is_string()) {
    out["content"] = *content;
  } else if (content->is_array()) {
    auto text = join_parts(*content, path + ".content");
    if (!text) return api_fail(text.error());
    out["content"] = std::move(*text);
  } else {
    return fault(path + ".content", std::string("must be a string or an array of parts, not ") + json_kind(*content));
  }
  if (!name.empty()) out["name"] = name;
  if (!reasoning.empty()) out["reasoning_content"] = reasoning;
  return out;
}

}  // namespace

ApiExpected<Json> check_messages(const Json& messages) {
  if (!messages.is_array()) return fault("messages", std::string("must be an array, not ") + json_kind(messages));
  if (messages.empty()) return fault("messages", "is empty");
  if (messages.size() > kMaxMessages) return fault("messages", "holds too many messages");
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = check_message(messages[i], "messages[" + std::to_string(i) + "]");
    if (!message) return api_fail(message.error());
    out.push_back(std::move(*message));
  }
  return out;
}

}  // namespace tailrace
