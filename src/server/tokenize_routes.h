// POST /tokenize and /detokenize: the model's tokenizer, and its chat template, as clients ask for them.
#pragma once

#include "server/api_error.h"
#include "server/http_exchange.h"
#include "server/served_model.h"

namespace tailrace {

// {"count", "max_model_len", "tokens"} of {"prompt"} or {"messages"}.
ApiExpected<Json> answer_tokenize(const ServedModel& served, const HttpRequest& request, const JsonLimits& limits);

// {"prompt"} of {"tokens"}.
ApiExpected<Json> answer_detokenize(const ServedModel& served, const HttpRequest& request, const JsonLimits& limits);

}  // namespace tailrace
