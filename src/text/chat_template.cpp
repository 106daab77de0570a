#include "text/chat_template.h"

#include <ctime>

#include "text/textkit_call.h"

namespace tailrace {

namespace {

int64_t clock_of(const ChatInput& input) { return input.now_s.value_or(static_cast<int64_t>(std::time(nullptr))); }

Expected<std::string> to_json(const ChatInput& input) {
  if (!input.kwargs.is_object()) return fail(invalid("chat_template_kwargs must be an object"));
  OrderedJson json = OrderedJson::object();
  json["messages"] = input.messages;
  json["tools"] = input.tools;
  json["kwargs"] = input.kwargs;
  json["add_generation_prompt"] = input.add_generation_prompt;
  try {
    return json.dump();
  } catch (const OrderedJson::exception&) {
    return fail(invalid("messages hold text that is not valid UTF-8"));
  }
}

// A text that templates write as it stands, of no other message.
std::string mark(size_t message) { return "probe" + std::to_string(message) + "."; }

// A name as a tool may have it, of no other tool and in no message.
std::string tool_mark(size_t tool) { return "probe_tool_" + std::to_string(tool) + "_"; }

std::string call_mark(size_t message, size_t call) {
  return "probe_call_" + std::to_string(message) + "_" + std::to_string(call) + "_";
}

OrderedJson probe_tools() {
  const OrderedJson parameters = {{"type", "object"}, {"properties", OrderedJson::object()}};
  const OrderedJson function = {{"name", "probe"}, {"description", ""}, {"parameters", parameters}};
  return OrderedJson::array({{{"type", "function"}, {"function", function}}});
}

}  // namespace

Expected<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(std::string_view source,
                                                                    const ChatTemplateOptions& options) {
  OrderedJson globals = options.extra.is_object() ? options.extra : OrderedJson::object();
  if (!options.bos_token.empty()) globals["bos_token"] = options.bos_token;
  if (!options.eos_token.empty()) globals["eos_token"] = options.eos_token;
  const std::string globals_text = globals.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const tk_template_options c{to_tk(globals_text), options.max_steps, options.max_output_bytes};
  tk_template* handle = nullptr;
  tk_string error{};
  const tk_status status = tk_template_new(to_tk(source), &c, &handle, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  std::shared_ptr<ChatTemplate> out(new ChatTemplate(handle, std::string(source)));
  tk_string variables{};
  if (const tk_status read = tk_template_variables(handle, &variables, &error); read != TK_OK) {
    return fail(to_status(read, error));
  }
  out->variables_ = OrderedJson::parse(take(variables)).get<std::set<std::string>>();
  const OrderedJson user = {{"role", "user"}, {"content", mark(0)}};
  out->habits_.tools = !out->left_out({.messages = OrderedJson::array({user}), .tools = probe_tools()}).tool;
  // Nothing else is to be told from a template that does not even write a plain conversation.
  out->writes_chats_ = out->writes("uau");
  if (!out->writes_chats_) return out;
  const bool results = out->writes("uct"), system = results && out->writes("su");
  out->habits_ = {.later_system = out->writes("susasus"),
                  .system_always = !system || out->writes("suct"),
                  .user_runs = out->writes("uuauu"),
                  .late_results = !results || (out->writes("ucut") && out->writes("ucat")),
                  .tools = out->habits_.tools};
  return out;
}

bool ChatTemplate::writes(std::string_view roles) const {
  constexpr const char* kCallId = "abcDEF123";  // as Mistral's templates want it
  const OrderedJson call = {{"name", "probe"}, {"arguments", OrderedJson::object()}};
  ChatInput input;
  for (size_t i = 0; i < roles.size(); ++i) {
    const char role = roles[i];
    OrderedJson message = {{"role", role == 's' ? "system" : role == 'u' ? "user" : role == 't' ? "tool" : "assistant"},
                           {"content", role == 'c' ? "" : mark(i)}};
    if (role == 't') message["tool_call_id"] = kCallId;
    if (role == 'c') {
      input.tools = probe_tools();
      message["tool_calls"] = OrderedJson::array({{{"id", kCallId}, {"type", "function"}, {"function", call}}});
    }
    input.messages.push_back(std::move(message));
  }
  const auto text = render(input);
  size_t at = 0;
  for (size_t i = 0; text && i < roles.size() && at != std::string::npos; ++i) {
    if (roles[i] != 'c') at = text->find(mark(i), at);
  }
  return text && at != std::string::npos;
}

LeftOut ChatTemplate::left_out(const ChatInput& input) const {
  ChatInput marked = input;
  std::vector<size_t> places;
  std::vector<std::pair<size_t, size_t>> called;
  for (size_t i = 0; i < marked.messages.size(); ++i) {
    OrderedJson& message = marked.messages[i];
    if (message.contains("tool_calls")) {
      OrderedJson& calls = message["tool_calls"];
      for (size_t k = 0; k < calls.size(); ++k) {
        calls[k]["function"]["name"] = call_mark(i, k);
        called.emplace_back(i, k);
      }
    }
    OrderedJson& content = message["content"];
    if (!writes_chats_ || message["role"] == "assistant" || !content.is_string() || content == "") continue;
    content = mark(i);
    places.push_back(i);
  }
  for (size_t i = 0; i < marked.tools.size(); ++i) marked.tools[i]["function"]["name"] = tool_mark(i);
  LeftOut out;
  const auto text = render(marked);
  if (!text) return out;  // it acts on what the texts say
  const auto is_lost = [&](const std::string& what) { return text->find(what) == std::string::npos; };
  for (const size_t i : places) {
    if (!out.message && is_lost(mark(i))) out.message = i;
  }
  for (const auto& [i, k] : called) {
    if (!out.call && is_lost(call_mark(i, k))) out.call = i;
  }
  for (size_t i = 0; i < marked.tools.size() && !out.tool; ++i) out.tool = is_lost(tool_mark(i));
  return out;
}

ChatTemplate::~ChatTemplate() { tk_template_free(handle_); }

Expected<std::string> ChatTemplate::render(const ChatInput& input) const {
  const Expected<std::string> json = to_json(input);
  if (!json) return fail(json.error());
  tk_string text{};
  tk_string error{};
  const TextkitCall call;
  const tk_status status = tk_template_render(handle_, to_tk(*json), clock_of(input), &text, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return take(text);
}

Expected<RenderedPrompt> ChatTemplate::render_ids(const ChatInput& input, const Tokenizer& tokenizer,
                                                  const std::vector<TokenId>& control_ids) const {
  const Expected<std::string> json = to_json(input);
  if (!json) return fail(json.error());
  tk_string text{};
  tk_ids ids{};
  tk_string error{};
  const TextkitCall call;
  const tk_status status =
      tk_template_render_ids(handle_, tokenizer.handle(), to_tk(*json), clock_of(input), control_ids.data(),
                             control_ids.size(), &text, &ids, &error);
  if (status != TK_OK) return fail(to_status(status, error));
  return RenderedPrompt{take(text), take(ids)};
}

}  // namespace tailrace
