// From what a request asks of its answers' form, and of calls, to a compiled grammar: milliseconds, a worker's job.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/served_model.h"

namespace tailrace {

using CompiledForm = std::shared_ptr<const TokenConstraint>;

// Null where nothing is asked. Errors: 400 with the field and what of a schema or grammar cannot be kept or compiled;
// 503 when too many are being compiled.
ApiExpected<CompiledForm> chat_constraint(const ServedModel& model, const ChatRequest& request, ThinkStart start);
ApiExpected<CompiledForm> completion_constraint(const ServedModel& model, const CompletionRequest& request);

// The field that asks for a grammar: the form's, or "tools" where calls are kept to one; "" where nothing does.
std::string grammar_field(const std::optional<AnswerForm>& form, const ToolParams& tools = {});

// What is wrong with the grammar that `field` asks for, found when it is compiled or on the answer's way.
ApiError grammar_error(const Status& status, const std::string& field);

}  // namespace tailrace
