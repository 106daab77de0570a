#include "output/harmony_grammar.h"

namespace tailrace {
namespace {

std::string token(TokenId id) { return id < 0 ? "" : "<[" + std::to_string(id) + "]>"; }

}  // namespace

std::string harmony_grammar(const HarmonyTokens& t, bool has_body, const CallRules& calls, GrammarText& grammar) {
  const std::string open = token(t.channel) + " ", message = " " + token(t.message) + " ";
  const std::string json = t.constrain < 0 ? "" : " (\" \" " + token(t.constrain) + " \"json\")?";
  const std::string text = grammar.rule("TEXT", "/(.|\\n)+/");
  // Messages before the last: thoughts, and, where any text may be content, words to the user.
  const bool free = !calls.required && !has_body;
  const std::string channels = free ? "(\"analysis\" | \"commentary\")" : "\"analysis\"";
  const std::string again = token(t.end) + " " + token(t.start) + " \"assistant\"";
  std::string begin;
  if (t.end >= 0 && t.start >= 0) {
    begin = grammar.rule("before", open + channels + message + text + "? " + again) + "* ";
  }
  std::string last;
  if (!calls.functions.empty()) {  // a call ends the answer: there are no parallel ones
    for (const CallableFunction& function : calls.functions) {
      last += (last.empty() ? "" : " | ") +
              grammar.rule("call", open + lark_quoted("commentary to=functions." + function.name) + json + message +
                                       grammar.json(function.parameters));
    }
  }
  if (!calls.required) {
    const std::string content = has_body ? "@body" : text + "?";
    const std::string header = open + "\"final\"" + (has_body ? json : "") + message;
    last += (last.empty() ? "" : " | ") + grammar.rule("final", header + content);
  }
  return "start: " + begin + "(" + last + ")\n" + grammar.text();
}

}  // namespace tailrace
