#include "server/anthropic_content.h"

#include <optional>
#include <set>
#include <utility>

#include "server/chat_tools.h"
#include "server/json_fields.h"
#include "server/openai_request.h"
#include "server/reasoning_seal.h"
#include "server/request_labels.h"

namespace tailrace {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the body's bound is lower
constexpr const char* kEmptyLine = "\n\n";
constexpr const char* kFailedCall = "Error: ";

std::string at(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

tl::unexpected<ApiError> fault(const std::string& path, const std::string& message) {
  return bad_field(path, path + " " + message);
}

// What one turn says, of whichever role.
struct Turn {
  std::string text, reasoning;
  bool any_text = false;
  Json calls = Json::array();    // the assistant's
  Json results = Json::array();  // `tool` messages, the user's
};

void join(std::string& text, const std::string& more, const char* between) {
  if (!text.empty() && !more.empty()) text += between;
  text += more;
}

// A block's type, and what blocks of every type may have.
std::string read_type(FieldReader& fields) {
  std::string type;
  fields.read("type", type, 64);
  if (fields.ok() && type.empty()) fields.set_error("type", "is required");
  read_cache_control(fields);
  return type;
}

void refuse_type(FieldReader& fields, const std::string& type, const char* served) {
  fields.set_error("type", "'" + type + "' is not supported: " + served, "unsupported_content");
}

std::string read_text(FieldReader& fields) {
  std::string text;
  if (fields.get("text") == nullptr) fields.set_error("text", "is required");
  fields.read("text", text, kMaxTextBytes);
  fields.refuse("citations", {Json::array()}, "there are none here");
  fields.refuse_unknown();
  return text;
}

// A string, or text blocks.
ApiExpected<std::string> plain_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return fault(path,
                 std::string("must be a string or an array of blocks, not ") + json_kind(content));
  std::string out;
  for (size_t i = 0; i < content.size(); ++i) {
    if (!content[i].is_object())
      return fault(at(path, i), std::string("must be an object, not ") + json_kind(content[i]));
    FieldReader fields(content[i], at(path, i) + ".");
    const std::string type = read_type(fields);
    if (fields.ok() && type != "text") refuse_type(fields, type, "only text blocks are, here");
    join(out, read_text(fields), kEmptyLine);
    if (!fields.ok()) return api_fail(*fields.error());
  }
  return out;
}

void read_tool_use(FieldReader& fields, std::set<std::string>& known_calls, Turn& turn) {
  std::string id, name;
  fields.read("id", id, kMaxCallIdBytes);
  fields.read("name", name, kMaxTextBytes);
  const Json* input = fields.get("input");
  if (const Json* caller = fields.get("caller");
      caller != nullptr && *caller != Json{{"type", "direct"}}) {
    fields.set_error("caller", "is not supported: no tools run here", "unsupported_parameter");
  }
  fields.refuse("toolset_name", {}, "there are no toolsets");
  fields.refuse_unknown();
  if (id.empty()) fields.set_error("id", "is required");
  if (name.empty()) fields.set_error("name", "is required");
  if (input == nullptr || !input->is_object()) fields.set_error("input", "must be an object");
  if (!fields.ok()) return;
  known_calls.insert(id);
  turn.calls.push_back(
      {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *input}}}});
}

void read_tool_result(FieldReader& fields, const std::string& path,
                      const std::set<std::string>& known_calls, Turn& turn) {
  std::string id;
  bool is_error = false;
  fields.read("tool_use_id", id, kMaxCallIdBytes);
  fields.read("is_error", is_error);
  const Json* content = fields.get("content");
  fields.refuse("toolset_name", {}, "there are no toolsets");
  fields.refuse_unknown();
  if (known_calls.count(id) == 0) {
    fields.set_error("tool_use_id",
                     id.empty() ? "is required" : "is of no tool_use block in an earlier message");
  }
  if (turn.any_text) fields.set_error("type", "'tool_result' must come before the message's text");
  if (!fields.ok()) return;
  auto text =
      content == nullptr ? ApiExpected<std::string>("") : plain_text(*content, path + ".content");
  if (!text) return fields.adopt(std::move(text.error()));
  turn.results.push_back(
      {{"role", "tool"}, {"content", (is_error ? kFailedCall : "") + *text}, {"tool_call_id", id}});
}

void read_thinking(FieldReader& fields, Turn& turn) {
  std::string thinking, signature;
  if (fields.get("thinking") == nullptr) fields.set_error("thinking", "is required");
  fields.read("thinking", thinking, kMaxTextBytes);
  fields.read("signature", signature, kMaxTextBytes);
  fields.refuse_unknown();
  turn.reasoning += thinking.empty() ? open_reasoning(signature).value_or("") : thinking;
}

std::optional<ApiError> read_block(const Json& block, const std::string& path, bool user,
                                   std::set<std::string>& known_calls, Turn& turn) {
  FieldReader fields(block, path + ".");
  const std::string type = read_type(fields);
  if (!fields.ok()) return fields.error();
  if (type == "text") {
    join(turn.text, read_text(fields), user ? kEmptyLine : "");
    turn.any_text = true;
  } else if (user && type == "tool_result") {
    read_tool_result(fields, path, known_calls, turn);
  } else if (!user && type == "tool_use") {
    read_tool_use(fields, known_calls, turn);
  } else if (!user && type == "thinking") {
    read_thinking(fields, turn);
  } else {
    refuse_type(fields, type,
                user ? "a user's blocks are text and tool_result here"
                     : "an assistant's blocks are text, thinking and tool_use here");
  }
  return fields.error();
}

ApiExpected<Turn> read_turn(const Json& content, const std::string& path, bool user,
                            std::set<std::string>& known_calls) {
  Turn turn;
  if (content.is_string()) {
    turn.text = content.get<std::string>();
    return turn;
  }
  if (!content.is_array())
    return fault(path,
                 std::string("must be a string or an array of blocks, not ") + json_kind(content));
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block_path = at(path, i);
    if (!content[i].is_object())
      return fault(block_path, std::string("must be an object, not ") + json_kind(content[i]));
    if (auto error = read_block(content[i], block_path, user, known_calls, turn))
      return api_fail(std::move(*error));
  }
  return turn;
}

Json* last_of(Json& messages, const char* role) {
  return !messages.empty() && messages.back()["role"] == role ? &messages.back() : nullptr;
}

void add_text(Json& message, const std::string& text, const char* between) {
  join(message["content"].get_ref<std::string&>(), text, between);  // in place: turns may be many
}

void add_user_turn(Turn turn, Json& messages) {
  const bool answers = !turn.results.empty();
  for (Json& result : turn.results) messages.push_back(std::move(result));
  if (answers && turn.text.empty()) return;
  if (Json* last = last_of(messages, "user")) return add_text(*last, turn.text, kEmptyLine);
  messages.push_back({{"role", "user"}, {"content", std::move(turn.text)}});
}

void add_assistant_turn(Turn turn, Json& messages) {
  Json* last = last_of(messages, "assistant");
  if (last == nullptr) {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
    last = &messages.back();
  }
  add_text(*last, turn.text, "");
  if (!turn.reasoning.empty()) {
    Json& reasoning = (*last)["reasoning_content"];
    if (reasoning.is_null()) reasoning = "";
    reasoning.get_ref<std::string&>() += turn.reasoning;
  }
  for (Json& call : turn.calls) (*last)["tool_calls"].push_back(std::move(call));
}

ApiExpected<std::string> read_role(const Json& message, const std::string& path) {
  if (!message.is_object())
    return fault(path, std::string("must be an object, not ") + json_kind(message));
  FieldReader fields(message, path + ".");
  std::string role;
  fields.read("role", role, 64);
  if (role != "user" && role != "assistant" && role != "system") {
    fields.set_error("role", role.empty()
                                 ? "is required"
                                 : "must be user, assistant or system, not '" + role + "'");
  }
  if (fields.get("content") == nullptr) fields.set_error("content", "is required");
  fields.refuse_unknown();
  if (!fields.ok()) return api_fail(*fields.error());
  return role;
}

}  // namespace

ApiExpected<Json> messages_from_anthropic(const Json* system, const Json& messages) {
  if (!messages.is_array())
    return fault("messages", std::string("must be an array, not ") + json_kind(messages));
  if (messages.empty()) return fault("messages", "is empty");
  if (messages.size() > kMaxMessages) return fault("messages", "holds too many messages");
  Json out = Json::array();
  const auto add_system = [&](const Json& content,
                              const std::string& path) -> std::optional<ApiError> {
    auto text = plain_text(content, path);
    if (!text) return text.error();
    if (text->empty()) return std::nullopt;
    if (out.size() == 1 && out[0]["role"] == "system") {
      add_text(out[0], *text, kEmptyLine);
    } else {
      out.push_back({{"role", "system"}, {"content", std::move(*text)}});
    }
    return std::nullopt;
  };
  if (system != nullptr) {
    if (auto error = add_system(*system, "system")) return api_fail(std::move(*error));
  }
  std::set<std::string> known_calls;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto role = read_role(messages[i], at("messages", i));
    if (!role) return api_fail(role.error());
    const Json& content = messages[i]["content"];
    const std::string path = at("messages", i) + ".content";
    if (*role == "system") {
      if (auto error = add_system(content, path)) return api_fail(std::move(*error));
      continue;
    }
    auto turn = read_turn(content, path, *role == "user", known_calls);
    if (!turn) return api_fail(turn.error());
    *role == "user" ? add_user_turn(std::move(*turn), out)
                    : add_assistant_turn(std::move(*turn), out);
  }
  if (out.empty()) return fault("messages", "hold nothing that the model could read");
  return out;
}

}  // namespace tailrace
