#include "server/chat_prompt.h"

#include <string>
#include <string_view>

#include "server/template_messages.h"

namespace tailrace {
namespace {

constexpr size_t kShownBytes = 200;

// Sets the template's variable for reasoning_effort. Templates know levels, a switch, or nothing.
ApiExpected<Json> template_kwargs(const ChatRequest& request, const ChatTemplate& chat_template) {
  Json kwargs = request.template_kwargs;
  for (const auto& [name, unused] : kwargs.items()) {
    if (!chat_template.reads(name)) {
      const std::string field = "chat_template_kwargs." + name.substr(0, kShownBytes);
      return bad_field(field, field + ": this model's chat template reads no such variable", "unsupported_parameter");
    }
  }
  const std::string& effort = request.reasoning_effort;
  if (effort.empty()) return kwargs;
  const bool levels = chat_template.reads("reasoning_effort"), toggles = chat_template.reads("enable_thinking");
  const char* variable = levels ? "reasoning_effort" : "enable_thinking";
  if (!levels && !toggles) {
    return bad_field("reasoning_effort", "reasoning_effort: this model's chat template has no such setting",
                     "unsupported_parameter");
  }
  if (kwargs.contains(variable)) {
    return bad_field("reasoning_effort", std::string("reasoning_effort and chat_template_kwargs.") + variable +
                                             " exclude each other");
  }
  if (levels && effort != "low" && effort != "medium" && effort != "high") {
    return bad_field("reasoning_effort", "reasoning_effort of this model is low, medium or high, not " + effort);
  }
  kwargs[variable] = levels ? Json(effort) : Json(effort != "none");
  return kwargs;
}

}  // namespace

ApiExpected<ChatPrompt> render_chat(const ServedModel& model, const ChatRequest& request) {
  const TextModel& text = *model.text;
  if (!text.chat_template) {
    return bad_field("messages", "This model cannot chat: " + text.no_template_reason + ". Use /v1/completions.",
                     "no_chat_template");
  }
  const Json& tools = request.tools.offered;
  if (!tools.empty() && model.output.tools == ToolFormat::kNone) {
    return bad_field("tools", "tools: how this model writes calls is not known from its checkpoint; "
                     "start the server with --tool-call-parser", "unsupported_parameter");
  }
  auto kwargs = template_kwargs(request, *text.chat_template);
  if (!kwargs) return api_fail(kwargs.error());
  if (!tools.empty() && !text.chat_template->habits().tools) {
    return bad_field("tools", "tools: this model's chat template does not show them to the model",
                     "unsupported_parameter");
  }
  ChatInput input;
  input.messages = messages_for_template(request.messages, model.output, text.chat_template->source(),
                                         text.chat_template->habits());
  if (!tools.empty()) input.tools = tools_for_template(tools, model.output);
  input.kwargs = std::move(*kwargs);
  input.add_generation_prompt = request.add_generation_prompt;
  auto prompt = text.chat_template->render_ids(input, *text.tokenizer, text.eos_ids);
  if (!prompt) {
    ApiError error = from_status(prompt.error());
    error.param = "messages";
    return api_fail(std::move(error));
  }
  const LeftOut lost = text.chat_template->left_out(input);
  if (lost.tool) {
    return bad_field("tools", "tools: this model's chat template leaves one out of this conversation",
                     "unsupported_content");
  }
  if (lost.call) {
    return bad_field("messages", "messages: this model's chat template leaves out a function's call of an earlier answer",
                     "unsupported_content");
  }
  if (lost.message) {
    const std::string role = input.messages[*lost.message]["role"];
    return bad_field("messages",
                     "messages: in this order this model's chat template leaves out a message of the role '" + role + "'",
                     "unsupported_content");
  }
  return ChatPrompt{std::move(prompt->ids), think_start(model.output, prompt->text, text.chat_template->source())};
}

}  // namespace tailrace
