#include "server/anthropic_error.h"

namespace tailrace {
namespace {

const char* error_type(const ApiError& error) {
  switch (error.http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
    case 431:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 408:
    case 504:
      return "timeout_error";
    case 503:
      return error.code == "overloaded" ? "overloaded_error" : "api_error";
    default:
      return error.http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

Json anthropic_error(const ApiError& error, const std::string& request_id) {
  return {{"type", "error"},
          {"error", {{"type", error_type(error)}, {"message", error.message}}},
          {"request_id", request_id}};
}

bool in_anthropics_form(const HttpRequest& request) {
  const auto below = [&](const std::string& path) {
    return request.path == path || request.path.starts_with(path + "/");
  };
  return below("/v1/messages") || (request.by_anthropics_client && below("/v1/models"));
}

void word_as_anthropic(const std::string& request_id, HttpResponse& response) {
  if (response.error) response.body = dump_json(anthropic_error(*response.error, request_id));
}

}  // namespace tailrace
