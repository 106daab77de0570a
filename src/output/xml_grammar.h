// Calls of Qwen3-Coder's kind as grammar (output/xml_calls.h has the form).
#pragma once

#include <string>

#include "output/call_grammar.h"

namespace tailrace {

// <function=NAME> ... </function> of one function: its declared parameters in their order, each of its type. Without
// declared parameters any may come, as text. kUnsupported names a keyword that bare text cannot keep.
Expected<std::string> xml_function(const CallableFunction& function, GrammarText& grammar);

}  // namespace tailrace
