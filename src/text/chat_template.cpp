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
  // Nothing is to be told from a template that does not even write a plain conversation.
  if (out->writes("uau")) out->habits_ = {.later_system = out->writes("susasus"), .user_runs = out->writes("uuauu")};
  return out;
}

bool ChatTemplate::writes(std::string_view roles) const {
  const auto content = [](size_t i) { return "probe" + std::to_string(i) + "."; };
  ChatInput input;
  for (size_t i = 0; i < roles.size(); ++i) {
    const char* role = roles[i] == 's' ? "system" : roles[i] == 'u' ? "user" : "assistant";
    input.messages.push_back({{"role", role}, {"content", content(i)}});
  }
  const auto text = render(input);
  size_t at = 0;
  for (size_t i = 0; text && i < roles.size() && at != std::string::npos; ++i) at = text->find(content(i), at);
  return text && at != std::string::npos;
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
