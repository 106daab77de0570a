// Errors as Anthropic's clients read them: {"type": "error", "error": {"type", "message"},
// "request_id"}.
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/http_exchange.h"

namespace tailrace {

// `type` follows from the status, as Anthropic's does; a 503 for want of room is an
// overloaded_error.
Json anthropic_error(const ApiError& error, const std::string& request_id);

// Puts a response that is an error into this form where `path` is one of the Messages API's.
void word_error(std::string_view path, const std::string& request_id, HttpResponse& response);

}  // namespace tailrace
