// From what a request asks of its answers' form, and of calls, to a compiled grammar: milliseconds, a worker's job.
#pragma once

#include <memory>

#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/served_model.h"

namespace tailrace {

using CompiledForm = std::shared_ptr<const TokenConstraint>;

// Null where nothing is asked. Errors: 400 with the field and what of a schema or grammar cannot be kept or compiled;
// 503 when too many are being compiled.
ApiExpected<CompiledForm> chat_constraint(const ServedModel& model, const ChatRequest& request, ThinkStart start);
ApiExpected<CompiledForm> completion_constraint(const ServedModel& model, const CompletionRequest& request);

}  // namespace tailrace
