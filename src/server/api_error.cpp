#include "server/api_error.h"

namespace tailrace {
namespace {

const char* error_type(int http_status) {
  switch (http_status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
    case 504: return "timeout_error";
    default: return "invalid_request_error";
  }
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

Json to_json(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error_type(error.http_status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

ApiError shutting_down() { return {503, "The server is shutting down.", "", "shutting_down"}; }

ApiError from_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {400, status.message(), "", "invalid_value"};
    case StatusCode::kUnsupported: return {400, status.message(), "", "unsupported"};
    case StatusCode::kNotFound: return {404, status.message(), "", "not_found"};
    case StatusCode::kTooLarge: return {413, status.message(), "", "too_large"};
    case StatusCode::kResourceExhausted: return {503, status.message(), "", "overloaded"};
    case StatusCode::kUnavailable: return shutting_down();  // of a request: the queue is closed, or the engine ends
    case StatusCode::kCancelled: return {499, status.message(), "", "cancelled"};
    case StatusCode::kOk:
    case StatusCode::kDataLoss:
    case StatusCode::kInternal: break;
  }
  return {500, status.message(), "", "internal_error"};
}

}  // namespace tailrace
