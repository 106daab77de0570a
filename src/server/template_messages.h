// Messages and tools in the form that a family's chat templates ask for, where it differs from OpenAI's.
#pragma once

#include <string>
#include <string_view>

#include "output/output_format.h"
#include "server/json.h"
#include "text/chat_template.h"

namespace tailrace {

// `messages` as check_messages gives them.
//
// gpt-oss, Llama 3: one call per message, so a message with several becomes several, each followed by its result.
//
// gpt-oss: the reasoning before a call is `thinking`; content beside it joins it, since the template takes only one.
//
// Templates that know no system message but the first: a later one is the user's, between <system> and </system>.
// Where users and assistants have to alternate, user messages that follow each other are one, and one behind a tool's
// result joins that. Where a system message is lost unless a user's message comes last, it stands before the last of
// the user's. Where results are lost that do not follow their call, they are put there.
//
// Mistral: ids of calls are nine letters and digits; any other id is replaced, the same one everywhere. Where the
// template knows "thinking" parts, reasoning becomes one.
Json messages_for_template(const Json& messages, const OutputFormat& format, std::string_view template_source,
                           const TemplateHabits& habits = {});

// gpt-oss: a description, since the template cannot do without.
Json tools_for_template(const Json& tools, const OutputFormat& format);

}  // namespace tailrace
