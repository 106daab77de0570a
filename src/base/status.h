// Status and Expected: how expected failures (a client's request, a file's content) travel. Our own bugs use CHECK.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace tailrace {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's input is wrong: HTTP 400, exit code 2
  kNotFound,            // HTTP 404
  kTooLarge,            // a stated bound is exceeded: HTTP 413
  kResourceExhausted,   // a queue or a pool is full, try again later: HTTP 429 or 503
  kUnavailable,         // loading, draining or dead: HTTP 503
  kUnsupported,         // well-formed but not something this build does: HTTP 400, exit code 2
  kDataLoss,            // a file is truncated, inconsistent or hostile
  kCancelled,           // the client went away
  kInternal,            // an environment failure that nobody's input caused: HTTP 500
};

// An error code with a message that a person can act on. Default-constructed means success.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <typename T>
using Expected = tl::expected<T, Status>;

// `return fail(StatusCode::kDataLoss, "...")` from a function that returns Expected<T>.
inline tl::unexpected<Status> fail(StatusCode code, std::string message) {
  return tl::unexpected<Status>(Status(code, std::move(message)));
}
inline tl::unexpected<Status> fail(Status status) { return tl::unexpected<Status>(std::move(status)); }
inline Status invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace tailrace
