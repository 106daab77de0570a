// The conversation of a Messages request, block by block, as the chat messages that templates take.
#pragma once

#include <string>

#include "server/api_error.h"
#include "server/json.h"

namespace tailrace {

// The signature of thinking that is shown. It proves nothing: what a client sends back is taken as
// it stands. Thinking that is not shown is in its signature (server/reasoning_seal.h), and read
// from there.
inline constexpr const char* kThinkingSignature = "tailrace";

// `system` (null: none) and `messages`, in the form that check_messages gives. Text blocks of a
// system prompt, of a user's turn and of a tool's result are parted by an empty line, as are system
// messages at the beginning, which become one: templates take no more; those of the
// assistant's joined as they stand; turns of one role that follow each other become one. tool_use
// blocks become calls, tool_result blocks `tool` messages, thinking blocks reasoning_content.
// Errors: 400 with the path of the block, by name where its type is not served.
ApiExpected<Json> messages_from_anthropic(const Json* system, const Json& messages);

}  // namespace tailrace
