#include "server/template_messages.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <vector>

#include "server/seed_source.h"

namespace tailrace {
namespace {

bool has_calls(const Json& message) { return message.contains("tool_calls"); }

// The assistant's message with one of its calls at a time, each followed by the results of that call among `results`.
void split_calls(const Json& message, std::vector<Json> results, Json& out) {
  Json rest = message;
  for (const Json& call : message["tool_calls"]) {
    rest["tool_calls"] = Json::array({call});
    out.push_back(rest);
    rest["content"] = "";
    rest.erase("reasoning_content");
    for (Json& result : results) {
      if (!result.is_null() && result["tool_call_id"] == call["id"]) out.push_back(std::exchange(result, nullptr));
    }
  }
  for (Json& result : results) {
    if (!result.is_null()) out.push_back(std::move(result));
  }
}

Json one_call_per_message(const Json& messages) {
  Json out = Json::array();
  for (size_t i = 0; i < messages.size();) {
    const Json& message = messages[i++];
    if (!has_calls(message) || message["tool_calls"].size() < 2) {
      out.push_back(message);
      continue;
    }
    std::vector<Json> results;
    while (i < messages.size() && messages[i]["role"] == "tool") results.push_back(messages[i++]);
    split_calls(message, std::move(results), out);
  }
  return out;
}

// Every result behind the message that called for it.
Json results_behind_calls(const Json& messages) {
  std::map<std::string, size_t> callers;  // the last message that has a call of this id
  std::vector<std::vector<Json>> behind(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (message["role"] == "tool") behind[callers.at(message["tool_call_id"])].push_back(message);
    if (!has_calls(message)) continue;
    for (const Json& call : message["tool_calls"]) callers[call["id"]] = i;
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] == "tool") continue;
    out.push_back(messages[i]);
    for (Json& result : behind[i]) out.push_back(std::move(result));
  }
  return out;
}

// What the model thought before a call; reasoning before an answer is not shown to it again.
void reasoning_to_thinking(Json& messages) {
  for (Json& message : messages) {
    const std::string reasoning = message.value("reasoning_content", "");
    message.erase("reasoning_content");
    if (!has_calls(message) || reasoning.empty()) continue;
    const std::string content = message["content"];
    message["thinking"] = reasoning + (content.empty() ? "" : "\n\n" + content);
    message["content"] = "";
  }
}

std::string mistral_id(const std::string& id) {
  constexpr size_t kLength = 9;
  const bool good =
      id.size() == kLength && std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  return good ? id : letters_and_digits(std::hash<std::string>()(id), kLength);
}

void shorten_ids(Json& messages) {
  for (Json& message : messages) {
    if (message.contains("tool_call_id")) message["tool_call_id"] = mistral_id(message["tool_call_id"]);
    if (!has_calls(message)) continue;
    for (Json& call : message["tool_calls"]) call["id"] = mistral_id(call["id"]);
  }
}

void reasoning_to_parts(Json& messages) {
  for (Json& message : messages) {
    const std::string reasoning = message.value("reasoning_content", "");
    if (reasoning.empty()) continue;
    const Json text = {{"type", "text"}, {"text", message["content"]}};
    message["content"] = Json::array({{{"type", "thinking"}, {"thinking", reasoning}}});
    if (text["text"] != "") message["content"].push_back(text);
    message.erase("reasoning_content");
  }
}

// Puts `message`'s text behind that of the last of `out`.
void join_last(const Json& message, Json& out) {
  out.back()["content"].get_ref<std::string&>() += "\n\n" + message["content"].get_ref<const std::string&>();
}

// System messages behind the first as the users' they stand by.
Json later_system_to_user(const Json& messages) {
  Json out = Json::array();
  bool by_user = false;  // the last message is one that was a system message: a user's joins it
  for (const Json& message : messages) {
    const bool later = message["role"] == "system" && !out.empty();
    const bool after_user = !out.empty() && out.back()["role"] == "user";
    Json here = message;
    if (later) {
      here["role"] = "user";
      here["content"] = "<system>\n" + message["content"].get_ref<const std::string&>() + "\n</system>";
    }
    const bool joins = after_user && (later || (by_user && here["role"] == "user"));
    by_user = later && (by_user || !after_user);
    joins ? join_last(here, out) : out.push_back(std::move(here));
  }
  return out;
}

Json alternating(const Json& messages) {
  Json out = Json::array();
  for (const Json& message : messages) {
    const Json last = out.empty() ? Json() : out.back()["role"];
    const bool joins = message["role"] == "user" && (last == "user" || last == "tool");
    joins ? join_last(message, out) : out.push_back(message);
  }
  return out;
}

// As Mistral's templates write it where that message comes last.
Json system_before_last_user(const Json& messages) {
  if (messages.empty() || messages[0]["role"] != "system") return messages;
  Json out = messages;
  const auto is_user = [](const Json& message) { return message["role"] == "user"; };
  const auto user = std::find_if(out.rbegin(), out.rend(), is_user);
  if (user == out.rend()) {
    out[0]["role"] = "user";
    return out;
  }
  std::string text = out[0]["content"];
  (*user)["content"] = std::move(text) + "\n\n" + (*user)["content"].get_ref<const std::string&>();
  out.erase(0);
  return out;
}

}  // namespace

Json messages_for_template(const Json& messages, const OutputFormat& format, std::string_view template_source,
                           const TemplateHabits& habits) {
  const bool single = format.tools == ToolFormat::kHarmony || format.tools == ToolFormat::kLlama3;
  Json out = habits.late_results ? messages : results_behind_calls(messages);
  if (single) out = one_call_per_message(out);
  if (!habits.later_system) out = later_system_to_user(out);
  if (!habits.user_runs) out = alternating(out);
  if (!habits.system_always) out = system_before_last_user(out);
  if (format.reasoning == ReasoningFormat::kHarmony) reasoning_to_thinking(out);
  if (format.tools == ToolFormat::kMistral) shorten_ids(out);
  const bool thinking_parts = template_source.find("'thinking'") != std::string_view::npos;
  if (format.reasoning == ReasoningFormat::kMistral && thinking_parts) reasoning_to_parts(out);
  return out;
}

Json tools_for_template(const Json& tools, const OutputFormat& format) {
  Json out = tools;
  if (format.tools != ToolFormat::kHarmony) return out;
  for (Json& tool : out) {
    if (!tool["function"].contains("description")) tool["function"]["description"] = "";
  }
  return out;
}

}  // namespace tailrace
