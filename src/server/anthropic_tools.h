// Tools as a Messages request offers and demands them.
#pragma once

#include "server/chat_tools.h"

namespace tailrace {

inline constexpr size_t kMaxAnthropicToolNameBytes = 128;

// Reads tools and tool_choice, in the form that read_tools gives.
void read_anthropic_tools(FieldReader& fields, ToolParams& out);

}  // namespace tailrace
