// CallGrammar: the rules of Lark's syntax by which one family writes calls of given functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "output/answer_grammar.h"

namespace tailrace {

// Collects rules; names are unique within one grammar.
class GrammarText {
 public:
  explicit GrammarText(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // A marker: its token where that counts by its id (as in MarkerLexer), else its characters.
  std::string mark(std::string_view spelling) const;
  bool is_token(std::string_view spelling) const;
  // Adds `name: body` under a fresh name that begins with `stem`, and returns it. attributes: "[suffix=...]" or "".
  std::string rule(const std::string& stem, const std::string& body, const std::string& attributes = "");
  // A rule for JSON of a schema; white space in it is bounded.
  std::string json(nlohmann::ordered_json schema);
  // A rule for any text up to and with `end`, which begins where it is first spelled, or with the token of that name.
  std::string text_until(std::string_view end, const std::string& regex = "/(.|\\n)*/");
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::string& text() const { return text_; }

 private:
  const Tokenizer& tokenizer_;
  std::string text_;
  int next_ = 0;
};

// Rules for calls. `calls`: one or more (one, without parallel). `mixed`: any text with calls in it.
struct CallRuleNames {
  std::string calls, mixed;
};
Expected<CallRuleNames> call_rules(ToolFormat format, const CallRules& calls, GrammarText& grammar);

}  // namespace tailrace
