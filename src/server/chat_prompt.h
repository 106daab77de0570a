// The prompt of a chat request: the conversation brought into the form that the model's own template wants, and
// rendered.
#pragma once

#include <vector>

#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/served_model.h"

namespace tailrace {

struct ChatPrompt {
  std::vector<TokenId> ids;
  ThinkStart think_start = ThinkStart::kOutside;
};

// Errors: 400 no_chat_template; tools or a reasoning_effort that this model cannot have; what the template says.
ApiExpected<ChatPrompt> render_chat(const ServedModel& model, const ChatRequest& request);

}  // namespace tailrace
