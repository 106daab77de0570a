// Errors as Anthropic's clients read them: {"type": "error", "error": {"type", "message"},
// "request_id"}.
#pragma once

#include <string>

#include "server/api_error.h"
#include "server/http_exchange.h"

namespace tailrace {

// `type` follows from the status, as Anthropic's does; a 503 for want of room is an
// overloaded_error.
Json anthropic_error(const ApiError& error, const std::string& request_id);

// Whether a request is answered in Anthropic's form: all of the Messages API's, and of what both APIs have (/v1/models)
// those of Anthropic's clients.
bool in_anthropics_form(const HttpRequest& request);

// Puts a response that is an error into this form.
void word_as_anthropic(const std::string& request_id, HttpResponse& response);

}  // namespace tailrace
