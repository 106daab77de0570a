#include "server/answer_constraint.h"

#include "output/answer_grammar.h"

namespace tailrace {
namespace {

ApiError grammar_error(const Status& status, const std::string& field) {
  ApiError error = from_status(status);
  if (status.code() == StatusCode::kTooLarge) error.http_status = 400;  // of the grammar, not of the body
  error.message = field + ": " + status.message();
  error.param = field;
  if (error.http_status == 400) error.code = "invalid_grammar";
  return error;
}

tl::unexpected<ApiError> no_grammars(const ServedModel& model, const std::string& field) {
  return bad_field(field, field + " cannot be kept: " + model.no_grammars_reason, "unsupported_parameter");
}

// Arguments are an object, also where a schema does not say so.
Json schema_of_arguments(const Json& parameters) {
  Json schema = parameters;
  if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
  return schema;
}

// The functions that may be called, all with their schema or the strict ones alone.
CallRules call_rules_of(const ToolParams& tools, bool all_schemas) {
  CallRules out{.functions = {}, .required = tools.required, .parallel = tools.parallel_calls};
  for (const Json& tool : tools.offered) {
    const Json& function = tool["function"];
    CallableFunction entry{function["name"].get<std::string>(), nullptr};
    if (!tools.forced.empty() && entry.name != tools.forced) continue;
    const bool schema = all_schemas || tools.strict.count(entry.name) > 0;
    if (schema && function.contains("parameters")) entry.parameters = schema_of_arguments(function["parameters"]);
    out.functions.push_back(std::move(entry));
  }
  return out;
}

Expected<CompiledForm> compile(const ServedModel& model, ThinkStart start, const std::optional<GrammarSource>& body,
                               const CallRules& calls) {
  const auto source = answer_grammar(model.output, start, *model.text->tokenizer, body, calls);
  if (!source) return fail(source.error());
  return model.grammars->compile(*source);
}

bool holds_switches(const ToolParams& tools) {
  for (const Json& tool : tools.offered) {
    if (tool["function"].contains("parameters") && tool["function"]["parameters"].contains("x-guidance")) return true;
  }
  return false;
}

}  // namespace

ApiExpected<CompiledForm> chat_constraint(const ServedModel& model, const ChatRequest& request, ThinkStart start) {
  const ToolParams& tools = request.tools;
  const std::optional<AnswerForm>& form = request.params.form;
  if (!form && !tools.constrained()) return nullptr;
  const std::string field = form && !tools.constrained() ? form->field : "tools";
  if (!model.grammars) return no_grammars(model, field);
  if (holds_switches(tools)) return bad_field("tools", "parameters must not hold x-guidance", "unsupported_parameter");
  std::optional<GrammarSource> body;
  if (form && !tools.required) body = form->body;
  auto compiled = compile(model, start, body, call_rules_of(tools, /*all_schemas=*/true));
  // A schema that cannot be kept is nobody's promise where the tool is not strict: any object will do.
  if (!compiled && !tools.offered.empty()) compiled = compile(model, start, body, call_rules_of(tools, false));
  if (!compiled) return api_fail(grammar_error(compiled.error(), field));
  return std::move(*compiled);
}

ApiExpected<CompiledForm> completion_constraint(const ServedModel& model, const CompletionRequest& request) {
  const std::optional<AnswerForm>& form = request.params.form;
  if (!form) return nullptr;
  if (!model.grammars) return no_grammars(model, form->field);
  auto compiled = model.grammars->compile(form->body);
  if (!compiled) return api_fail(grammar_error(compiled.error(), form->field));
  return std::move(*compiled);
}

}  // namespace tailrace
