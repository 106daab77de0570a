#include "output/call_grammar.h"

#include <algorithm>

#include "output/gemma_grammar.h"
#include "output/xml_grammar.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

// {"name": "NAME", "KEY": ARGUMENTS} of one of the functions.
std::string json_call(const CallRules& calls, const char* key, GrammarText& grammar) {
  std::string any;
  for (const CallableFunction& function : calls.functions) {
    const std::string head = "{\"name\": \"" + function.name + "\", \"" + key + "\": ";
    const std::string body = lark_quoted(head) + " " + grammar.json(function.parameters) + " \"}\"";
    any += (any.empty() ? "" : " | ") + grammar.rule("call", body);
  }
  return grammar.rule("any_call", any);
}

std::string repeated(const std::string& call, const std::string& between, bool parallel) {
  return parallel ? call + " (" + between + call + ")*" : call;
}

// Text around calls that open with a marker. `rest`: a call without its marker.
CallRuleNames around(std::string_view open, const std::string& rest, const std::string& between, bool parallel,
                     GrammarText& grammar) {
  const std::string call = grammar.rule("marked_call", grammar.mark(open) + " " + rest);
  CallRuleNames out{.calls = grammar.rule("calls", repeated(call, between, parallel)), .mixed = ""};
  std::string tail = "/(.|\\n)+/";
  if (grammar.is_token(open)) {
    tail = grammar.rule("TEXT", tail);
    out.mixed = grammar.rule("mixed", tail + "? (" + call + " " + tail + "?)" + (parallel ? "*" : "?"));
    return out;
  }
  std::string pattern;  // no tail holds the marker: it would be read as a call
  for (const char c : open) {
    if (std::string_view("|[](){}.*+?^$\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  tail = grammar.rule("TEXT", tail + " & ~/(.|\\n)*" + pattern + "(.|\\n)*/");
  const std::string lead = grammar.text_until(open);
  out.mixed = grammar.rule("mixed", "(" + lead + " " + rest + ")" + (parallel ? "*" : "?") + " " + tail + "?");
  return out;
}

CallRuleNames qwen_rules(const CallRules& calls, GrammarText& grammar) {
  const std::string rest =
      "\"\\n\" " + json_call(calls, "arguments", grammar) + " \"\\n\" " + grammar.mark("</tool_call>");
  return around("<tool_call>", grammar.rule("rest", rest), "\"\\n\" ", calls.parallel, grammar);
}

Expected<CallRuleNames> coder_rules(const CallRules& calls, GrammarText& grammar) {
  std::string any;
  for (const CallableFunction& function : calls.functions) {
    auto rule = xml_function(function, grammar);
    if (!rule) return fail(rule.error());
    any += (any.empty() ? "" : " | ") + *rule;
  }
  const std::string rest = "\"\\n\" (" + any + ") \"\\n\" " + grammar.mark("</tool_call>");
  return around("<tool_call>", grammar.rule("rest", rest), "\"\\n\" ", calls.parallel, grammar);
}

// The whole answer is calls, or does not begin like one.
CallRuleNames llama_rules(const CallRules& calls, GrammarText& grammar) {
  const std::string call = json_call(calls, "parameters", grammar);
  const std::string all = grammar.rule("calls", repeated(call, "\"; \" ", calls.parallel));
  return {.calls = all, .mixed = grammar.rule("mixed", all + " | " + grammar.rule("TEXT", "/[^{ \\n\\r\\t](.|\\n)*/"))};
}

CallRuleNames mistral_rules(const CallRules& calls, GrammarText& grammar) {
  if (grammar.is_token("[ARGS]")) {
    std::string any;
    for (const CallableFunction& function : calls.functions) {
      const std::string name = lark_quoted(function.name) + " " + grammar.mark("[ARGS]") + " ";
      any += (any.empty() ? "" : " | ") + grammar.rule("call", name + grammar.json(function.parameters));
    }
    return around("[TOOL_CALLS]", grammar.rule("rest", any), "", calls.parallel, grammar);
  }
  // All calls stand in one array.
  const std::string call = json_call(calls, "arguments", grammar);
  const std::string rest = "\"[\" " + repeated(call, "\", \" ", calls.parallel) + " \"]\"";
  return around("[TOOL_CALLS]", grammar.rule("rest", rest), "", /*parallel=*/false, grammar);
}

CallRuleNames gemma_rules(const CallRules& calls, GrammarText& grammar) {
  std::string any;
  for (const CallableFunction& function : calls.functions) {
    const std::string name = lark_quoted("call:" + function.name) + " ";
    any += (any.empty() ? "" : " | ") + grammar.rule("call", name + gemma_arguments(function.parameters, grammar));
  }
  const std::string rest = "(" + any + ") " + grammar.mark("<tool_call|>");
  return around("<|tool_call>", grammar.rule("rest", rest), "", calls.parallel, grammar);
}

}  // namespace

std::string GrammarText::mark(std::string_view spelling) const {
  const auto id = tokenizer_.token_to_id(spelling);
  return id && tokenizer_.is_special(*id) ? "<[" + std::to_string(*id) + "]>" : lark_quoted(spelling);
}

bool GrammarText::is_token(std::string_view spelling) const { return mark(spelling)[0] == '<'; }

std::string GrammarText::rule(const std::string& stem, const std::string& body, const std::string& attributes) {
  const std::string name = stem + "_" + std::to_string(next_++);
  text_ += name + attributes + ": " + body + "\n";
  return name;
}

std::string GrammarText::json(Json schema) {
  if (schema.is_null()) schema = {{"type", "object"}};
  if (!schema.is_object()) schema = {{"allOf", Json::array({schema})}};
  schema["x-guidance"] = {{"whitespace_pattern", "[\\x20\\x0A\\x0D\\x09]{1,40}"}};
  return rule("json", "%json " + schema.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string GrammarText::text_until(std::string_view end, const std::string& regex) {
  if (!is_token(end)) return rule("until", regex, "[suffix=" + lark_quoted(end) + "]");
  return rule("until", rule("TEXT", regex) + " " + mark(end));
}

Expected<CallRuleNames> call_rules(ToolFormat format, const CallRules& calls, GrammarText& grammar) {
  switch (format) {
    case ToolFormat::kQwen: return qwen_rules(calls, grammar);
    case ToolFormat::kQwenCoder: return coder_rules(calls, grammar);
    case ToolFormat::kLlama3: return llama_rules(calls, grammar);
    case ToolFormat::kMistral: return mistral_rules(calls, grammar);
    case ToolFormat::kGemma4: return gemma_rules(calls, grammar);
    default: return fail(StatusCode::kUnsupported, "how this model writes calls is not known");
  }
}

}  // namespace tailrace
