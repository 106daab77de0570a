#include "server/chat_messages.h"

#include <string>

#include "server/chat_tools.h"
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
    FieldReader fields(part, part_path + ".");
    std::string type, piece;
    fields.read("type", type, 64);
    if (type != "text") {
      const std::string advice =
          type == "refusal" ? "send its text as a part of the type text" : "this model reads text only";
      fields.set_error("type", type.empty() ? "is required" : "'" + type + "' is not supported: " + advice,
                       "unsupported_content");
    }
    if (fields.get("text") == nullptr) fields.set_error("text", "is required");
    fields.read("text", piece, kMaxTextBytes);
    fields.refuse_unknown();
    if (!fields.ok()) return api_fail(*fields.error());
    text += piece;
  }
  return text;
}

bool is_role(const std::string& role) {
  return role == "system" || role == "user" || role == "assistant" || role == "tool";
}

// The text of `content`, which an assistant's message with calls need not have.
ApiExpected<std::string> content_text(const Json* content, const std::string& path, bool optional) {
  if (content == nullptr) return optional ? ApiExpected<std::string>("") : fault(path, "is required");
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) {
    return content->empty() && optional ? ApiExpected<std::string>("") : join_parts(*content, path);
  }
  return fault(path, std::string("must be a string or an array of parts, not ") + json_kind(*content));
}

// `history`: the calls in earlier messages; this one's are added.
ApiExpected<Json> check_message(const Json& message, const std::string& path, CallHistory& history) {
  if (!message.is_object()) return fault(path, std::string("must be an object, not ") + json_kind(message));
  FieldReader fields(message, path + ".");
  std::string role, name, reasoning, answered;
  fields.read("role", role, 64);
  if (fields.ok() && role.empty()) fields.set_error("role", "is required");
  if (role == "function") fields.set_error("role", "'function' is not supported: use tools and the role 'tool'");
  if (role == "developer") role = "system";
  if (!is_role(role)) {
    fields.set_error("role", "must be system, developer, user, assistant or tool, not '" + role + "'");
  }
  fields.read("name", name, 256);
  fields.read("reasoning_content", reasoning, kMaxTextBytes);
  const Json* calls = fields.get("tool_calls");
  fields.read("tool_call_id", answered, kMaxCallIdBytes);
  fields.refuse("function_call", {}, "use tools and tool_calls");
  fields.refuse("audio", {}, "text only");
  fields.refuse("refusal", {}, "put the text into content");
  fields.refuse("annotations", {Json::array()}, "text only");
  const Json* content = fields.get("content");
  fields.refuse_unknown();
  const bool has_calls = calls != nullptr && *calls != Json::array();
  if (has_calls && role != "assistant") fields.set_error("tool_calls", "belongs to an assistant's message");
  if (!answered.empty() && role != "tool") {
    fields.set_error("tool_call_id", "belongs to a message with the role 'tool'");
  }
  if (role == "tool" && history.ids.count(answered) == 0) {
    fields.set_error("tool_call_id", answered.empty() ? "is required" : "is of no call in an earlier message");
  }
  if (!fields.ok()) return api_fail(*fields.error());

  auto text = content_text(content, path + ".content", has_calls);
  if (!text) return api_fail(text.error());
  Json out = {{"role", role}, {"content", std::move(*text)}};
  if (!name.empty()) out["name"] = name;
  if (!reasoning.empty()) out["reasoning_content"] = reasoning;
  if (role == "tool") out["tool_call_id"] = answered;
  if (has_calls) {
    auto checked = check_tool_calls(*calls, path + ".tool_calls", history);
    if (!checked) return api_fail(checked.error());
    out["tool_calls"] = std::move(*checked);
  }
  return out;
}

}  // namespace

ApiExpected<Json> check_messages(const Json& messages) {
  if (!messages.is_array()) return fault("messages", std::string("must be an array, not ") + json_kind(messages));
  if (messages.empty()) return fault("messages", "is empty");
  if (messages.size() > kMaxMessages) return fault("messages", "holds too many messages");
  Json out = Json::array();
  CallHistory history;
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = check_message(messages[i], "messages[" + std::to_string(i) + "]", history);
    if (!message) return api_fail(message.error());
    out.push_back(std::move(*message));
  }
  return out;
}

}  // namespace tailrace
