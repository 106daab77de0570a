// Errors as OpenAI's clients read them: a status code and {"error": {message, type, param, code}}.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"
#include "server/json.h"

namespace tailrace {

struct ApiError {
  int http_status = 400;
  std::string message;
  std::string param;  // the field at fault; "" is sent as null
  std::string code;   // machine-readable; "" is sent as null
};

template <typename T>
using ApiExpected = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> api_fail(ApiError error) { return tl::unexpected<ApiError>(std::move(error)); }
inline tl::unexpected<ApiError> bad_field(std::string param, std::string message, std::string code = "invalid_value") {
  return api_fail({400, std::move(message), std::move(param), std::move(code)});
}

// {"error": {...}}; `type` follows from the status as OpenAI's does.
Json to_json(const ApiError& error);

// What every request gets that comes too late, or is still open, when the server ends.
ApiError shutting_down();

ApiError from_status(const Status& status);

}  // namespace tailrace
