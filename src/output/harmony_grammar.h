// Answers of gpt-oss as a grammar over its control tokens (output/harmony_answer.h has the form).
#pragma once

#include <string>

#include "output/call_grammar.h"
#include "output/harmony_answer.h"

namespace tailrace {

// The whole grammar's text. has_body: content is @body, in the channel final; else any text.
std::string harmony_grammar(const HarmonyTokens& tokens, bool has_body, const CallRules& calls, GrammarText& grammar);

}  // namespace tailrace
