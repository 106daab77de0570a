#include "server/anthropic_plan.h"

#include <algorithm>
#include <optional>

#include "server/anthropic_writer.h"
#include "server/random_id.h"

namespace tailrace {
namespace {

using Thinking = MessagesRequest::Thinking;

tl::unexpected<ApiError> unsupported(const char* field, const std::string& reason) {
  return bad_field(field, std::string(field) + " " + reason, "unsupported_parameter");
}

// How many tokens of thinking an effort allows where the template has no levels: high and above say no more than
// nothing.
std::optional<int32_t> most_thinking(const std::string& effort) {
  if (effort == "low") return 1024;
  if (effort == "medium") return 4096;
  return std::nullopt;
}

// Templates know levels of effort, a switch, or nothing; where they know nothing, the model
// decides.
ApiExpected<ChatRequest> tell_template(const ServedModel& model, MessagesRequest request) {
  const auto reads = [&](const char* name) {
    return model.text->chat_template && model.text->chat_template->reads(name);
  };
  const bool levels = reads("reasoning_effort"), toggles = reads("enable_thinking");
  const bool reasons = model.output.reasoning != ReasoningFormat::kNone;
  ChatRequest& chat = request.chat;
  if (request.thinking == Thinking::kOn && !reasons)
    return unsupported("thinking.type", "'enabled': this model does not think");
  if (request.thinking == Thinking::kOff && reasons && !toggles) {
    return unsupported("thinking.type", "'disabled': this model always thinks");
  }
  if (toggles && request.thinking != Thinking::kUnsaid) {
    chat.template_kwargs["enable_thinking"] = request.thinking != Thinking::kOff;
  }
  if (levels) {
    const bool highest = request.effort == "xhigh" || request.effort == "max";
    chat.reasoning_effort = highest ? "high" : request.effort;
  } else if (const auto most = most_thinking(request.effort); most && reasons && request.thinking != Thinking::kOff) {
    chat.thinking_budget = std::min(*most, chat.thinking_budget.value_or(*most));
  }
  return std::move(chat);
}

}  // namespace

ApiExpected<GenerationPlan> plan_messages(const ServedModel& model, MessagesRequest request,
                                          const std::string& request_id, SeedSource& seeds) {
  const bool hide_thinking = request.hide_thinking;
  const auto chat = tell_template(model, std::move(request));
  if (!chat) return api_fail(chat.error());
  auto plan = plan_chat(model, *chat, seeds);
  if (!plan) return plan;
  plan->id = random_id("msg_");
  plan->writer = make_anthropic_writer(
      {.id = plan->id,
       .model = model.name,
       .request_id = request_id,
       .hide_thinking = hide_thinking,
       .max_tokens = *chat->params.max_tokens});
  return plan;
}

ApiExpected<Json> answer_count_tokens(const ServedModel& model, std::string_view body,
                                      const JsonLimits& limits) {
  auto request = parse_count_tokens_request(body, limits);
  if (!request) return api_fail(request.error());
  const auto chat = tell_template(model, std::move(*request));
  if (!chat) return api_fail(chat.error());
  const auto prompt = chat_prompt(model, *chat);
  if (!prompt) return api_fail(prompt.error());
  return Json{{"input_tokens", prompt->ids.size()}};
}

}  // namespace tailrace
