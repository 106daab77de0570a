// The messages of a chat request: checked, and brought into the form that chat templates know.
#pragma once

#include "server/api_error.h"
#include "server/json.h"

namespace tailrace {

// Per message: role system, developer (becomes system), user or assistant; content a string, or an array of text parts
// (joined without a separator, as in the templates' own loops); optional name and, for assistants, reasoning_content.
// Null members are dropped. Anything else (images, audio, tool calls) is an error whose param is the path, e.g.
// messages[2].content[0].type.
ApiExpected<Json> check_messages(const Json& messages);

}  // namespace tailrace
