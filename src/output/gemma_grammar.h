// Arguments as Gemma 4 writes them, as grammar (output/gemma_calls.h has the form).
#pragma once

#include <string>

#include "output/call_grammar.h"

namespace tailrace {

// {key:value,...} of a schema: bare keys, strings between <|"|>, the rest as JSON. What this form cannot keep
// (patterns, lengths, references, choices of schemas) is written in JSON's own, which the parser understands as well.
std::string gemma_arguments(const nlohmann::ordered_json& parameters, GrammarText& grammar);

}  // namespace tailrace
