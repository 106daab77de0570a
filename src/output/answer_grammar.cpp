#include "output/answer_grammar.h"

#include "output/call_grammar.h"
#include "output/harmony_answer.h"
#include "output/harmony_grammar.h"

namespace tailrace {
namespace {

// The reasoning that an answer begins with, up to the end of its frame; "" for none.
std::string reasoning_rule(const OutputFormat& format, ThinkStart start, GrammarText& grammar) {
  const auto markers = think_markers(format.reasoning);
  if (!markers || start == ThinkStart::kOutside) return "";
  const std::string thought = grammar.text_until(markers->end);
  const std::string header = markers->header.empty() ? "" : lark_quoted(markers->header) + "? ";
  const std::string begin = grammar.mark(markers->begin);
  const std::string breaks = grammar.rule("breaks", "/\\n{1,4}/");
  if (start == ThinkStart::kUnsaid) {
    return "(" + begin + " " + header + thought + " " + breaks + "?)? ";
  }
  const bool token = grammar.is_token(markers->begin);  // the prompt has opened it; else its characters are thought
  return (token ? begin + "? " : "") + thought + " " + breaks + "? ";
}

}  // namespace

std::vector<TokenId> control_ids(const OutputFormat& format, const Tokenizer& tokenizer) {
  if (format.reasoning != ReasoningFormat::kHarmony && format.tools != ToolFormat::kHarmony) return {};
  const HarmonyTokens t(tokenizer);
  std::vector<TokenId> out;
  for (TokenId id : {t.start, t.end, t.message, t.channel, t.constrain, t.call, t.ret}) {
    if (id >= 0) out.push_back(id);
  }
  return out;
}

Expected<GrammarSource> answer_grammar(const OutputFormat& format, ThinkStart start, const Tokenizer& tokenizer,
                                       const std::optional<GrammarSource>& body, const CallRules& calls) {
  GrammarSource out;
  if (body) out.kind = body->kind, out.body = body->body;
  GrammarText grammar(tokenizer);
  if (format.reasoning == ReasoningFormat::kHarmony || format.tools == ToolFormat::kHarmony) {
    out.outer = harmony_grammar(HarmonyTokens(tokenizer), body.has_value(), calls, grammar);
    return out;
  }
  const std::string reasoning = reasoning_rule(format, start, grammar);
  if (calls.functions.empty()) {
    if (!reasoning.empty()) out.outer = "start: " + reasoning + "@body\n" + grammar.text();
    return out;
  }
  const auto names = call_rules(format.tools, calls, grammar);
  if (!names) return fail(names.error());
  std::string rest = names->calls;
  if (!calls.required) rest = body ? "(@body | " + names->calls + ")" : names->mixed;
  out.outer = "start: " + reasoning + rest + "\n" + grammar.text();
  if (calls.required) out.body.clear();
  return out;
}

}  // namespace tailrace
