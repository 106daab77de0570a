// From a checked Messages request to a plan: its thinking becomes what the model's template has to
// say about it.
#pragma once

#include <string>
#include <string_view>

#include "server/anthropic_request.h"
#include "server/generation_plan.h"

namespace tailrace {

// As plan_chat, worded by a writer of Messages. Without room for max_tokens the answer ends with
// the context. Errors besides: 400 for thinking that this model's template cannot be told.
ApiExpected<GenerationPlan> plan_messages(const ServedModel& model, MessagesRequest request,
                                          const std::string& request_id, SeedSource& seeds);

// The answer of /v1/messages/count_tokens, {"input_tokens"}: of the prompt that plan_messages would
// make.
ApiExpected<Json> answer_count_tokens(const ServedModel& model, std::string_view body,
                                      const JsonLimits& limits);

}  // namespace tailrace
