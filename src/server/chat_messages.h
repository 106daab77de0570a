// The messages of a chat request: checked, and brought into the form that chat templates know.
#pragma once

#include "server/api_error.h"
#include "server/json.h"

namespace tailrace {

// Per message: role system, developer (becomes system), user, assistant or tool; content a string, or an array of
// text parts (joined without a separator, as in the templates' own loops); optional name. Assistants may have
// reasoning_content and tool_calls (content may be absent then, and is "" in the result); tool messages have the
// tool_call_id of an earlier call. Null members are dropped. Anything else (images, audio) is an error whose param is
// the path, e.g. messages[2].content[0].type.
ApiExpected<Json> check_messages(const Json& messages);

}  // namespace tailrace
