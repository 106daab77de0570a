// answer_grammar: what a whole answer must be, as a grammar: reasoning first where the family reasons, then content in
// a given form, or calls in the family's own syntax, such that the output parser reads them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "output/output_format.h"
#include "text/grammar.h"

namespace tailrace {

// A function that may be called.
struct CallableFunction {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema; null: any object
};

struct CallRules {
  std::vector<CallableFunction> functions;  // empty: no calls
  bool required = false;                    // calls and nothing else; else content may come as well
  bool parallel = true;                     // else one call at most
};

// `body`: the form of the content (its `outer` is unused); none: any text. Either that or functions must be given.
// kUnsupported names what of a schema the family's syntax cannot hold.
Expected<GrammarSource> answer_grammar(const OutputFormat& format, ThinkStart start, const Tokenizer& tokenizer,
                                       const std::optional<GrammarSource>& body, const CallRules& calls);

// Tokens that grammars of this format name by their ids although the vocabulary does not call them special.
std::vector<TokenId> control_ids(const OutputFormat& format, const Tokenizer& tokenizer);

}  // namespace tailrace
