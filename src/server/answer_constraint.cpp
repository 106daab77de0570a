#include "server/answer_constraint.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/clock.h"
#include "output/answer_grammar.h"
#include "text/json_schema.h"

namespace tailrace {
namespace {

constexpr int64_t kTryTimeNs = 2'000'000'000;

tl::unexpected<ApiError> no_grammars(const ServedModel& model, const std::string& field) {
  return bad_field(field, field + " cannot be kept: " + model.no_grammars_reason, "unsupported_parameter");
}

// Arguments are an object, also where a schema does not say so.
Json schema_of_arguments(const Json& parameters) {
  Json schema = parameters;
  if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
  return schema;
}

// Which of the functions that may be called are held to their schema.
using HasSchema = std::function<bool(const std::string& name)>;

CallRules call_rules_of(const ToolParams& tools, const HasSchema& has_schema) {
  CallRules out{.functions = {}, .required = tools.required, .parallel = tools.parallel_calls};
  for (const Json& tool : tools.offered) {
    const Json& function = tool["function"];
    CallableFunction entry{function["name"].get<std::string>(), nullptr};
    if (!tools.forced.empty() && entry.name != tools.forced) continue;
    if (function.contains("parameters") && has_schema(entry.name)) {
      entry.parameters = schema_of_arguments(function["parameters"]);
    }
    out.functions.push_back(std::move(entry));
  }
  return out;
}

Expected<CompiledForm> compile(const ServedModel& model, ThinkStart start, const std::optional<GrammarSource>& body,
                               const CallRules& calls, bool keep = true) {
  for (const CallableFunction& function : calls.functions) {
    const Status words = check_schema_words(function.parameters);
    if (!words.ok()) return fail(invalid("the parameters of '" + function.name + "' hold " + words.message()));
  }
  const auto source = answer_grammar(model.output, start, *model.text->tokenizer, body, calls);
  if (!source) return fail(source.error());
  return model.grammars->compile(*source, keep);
}

// Not for want of room, which another attempt would make worse.
bool is_wrong(const Status& status) { return status.code() != StatusCode::kResourceExhausted; }

bool is_loose(const ToolParams& tools, const Json& function) {
  const std::string name = function["name"];
  const bool callable = tools.forced.empty() || name == tools.forced;
  return callable && tools.strict.count(name) == 0 && function.contains("parameters");
}

// Of the functions that are not strict those whose schema can be kept: each is tried alone, for kTryTimeNs together.
std::set<std::string> schemas_that_compile(const ServedModel& model, const ToolParams& tools) {
  std::set<std::string> out;
  const int64_t end_ns = now_ns() + kTryTimeNs;
  for (const Json& tool : tools.offered) {
    const Json& function = tool["function"];
    if (!is_loose(tools, function)) continue;
    if (now_ns() > end_ns) break;
    const std::string name = function["name"];
    const CallRules alone{.functions = {{name, schema_of_arguments(function["parameters"])}}, .required = true};
    if (compile(model, ThinkStart::kOutside, std::nullopt, alone, /*keep=*/false)) out.insert(name);
  }
  return out;
}

bool holds_switches(const ToolParams& tools) {
  for (const Json& tool : tools.offered) {
    if (tool["function"].contains("parameters") && tool["function"]["parameters"].contains("x-guidance")) return true;
  }
  return false;
}

}  // namespace

ApiError grammar_error(const Status& status, const std::string& field) {
  ApiError error = from_status(status);
  if (status.code() == StatusCode::kTooLarge) error.http_status = 400;  // of the grammar, not of the body
  error.message = field + ": " + status.message();
  error.param = field;
  if (error.http_status == 400) error.code = "invalid_grammar";
  return error;
}

std::string grammar_field(const std::optional<AnswerForm>& form, const ToolParams& tools) {
  return tools.constrained() ? "tools" : form ? form->field : "";
}

ApiExpected<CompiledForm> chat_constraint(const ServedModel& model, const ChatRequest& request, ThinkStart start) {
  const ToolParams& tools = request.tools;
  const std::optional<AnswerForm>& form = request.params.form;
  const std::string field = grammar_field(form, tools);
  if (field.empty()) return nullptr;
  if (!model.grammars) return no_grammars(model, field);
  if (holds_switches(tools)) return bad_field("tools", "parameters must not hold x-guidance", "unsupported_parameter");
  std::optional<GrammarSource> body;
  if (form && !tools.required) body = form->body;
  const auto compile_with = [&](const HasSchema& has_schema) {
    return compile(model, start, body, call_rules_of(tools, has_schema));
  };
  auto compiled = compile_with([](const std::string&) { return true; });
  // A schema that cannot be kept is nobody's promise where the tool is not strict: any object will do.
  const bool loose = std::any_of(tools.offered.begin(), tools.offered.end(),
                                 [&](const Json& tool) { return is_loose(tools, tool["function"]); });
  if (!compiled && is_wrong(compiled.error()) && loose) {
    const auto strict = [&](const std::string& name) { return tools.strict.count(name) > 0; };
    const std::set<std::string> kept = schemas_that_compile(model, tools);
    if (!kept.empty()) {
      compiled = compile_with([&](const std::string& name) { return strict(name) || kept.count(name) > 0; });
    }
    // None can, or not all of them together.
    if (!compiled && is_wrong(compiled.error())) compiled = compile_with(strict);
  }
  if (!compiled) return api_fail(grammar_error(compiled.error(), field));
  return std::move(*compiled);
}

ApiExpected<CompiledForm> completion_constraint(const ServedModel& model, const CompletionRequest& request) {
  const std::optional<AnswerForm>& form = request.params.form;
  const std::string field = grammar_field(form);
  if (field.empty()) return nullptr;
  if (!model.grammars) return no_grammars(model, field);
  auto compiled = model.grammars->compile(form->body);
  if (!compiled) return api_fail(grammar_error(compiled.error(), field));
  return std::move(*compiled);
}

}  // namespace tailrace
