// FieldReader: takes the members of one JSON object apart, with types and ranges, and finds the ones nobody asked for.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/json.h"

namespace tailrace {

// The first fault is kept and every later read is skipped, so a parser reads all fields in a row and asks once.
// `prefix` is put before names in errors ("messages[3].").
class FieldReader {
 public:
  explicit FieldReader(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  // The member, or null when it is absent or null. Counts as known from then on.
  const Json* get(const char* name);

  void read(const char* name, bool& out);
  void read(const char* name, std::string& out, size_t max_bytes);
  void read(const char* name, std::optional<bool>& out);
  // lo <= value <= hi, written so that NaN fails.
  void read(const char* name, std::optional<float>& out, double lo, double hi, bool lo_open = false);
  void read(const char* name, std::optional<int64_t>& out, int64_t lo, int64_t hi);
  void read(const char* name, std::optional<int32_t>& out, int32_t lo, int32_t hi);

  // Known, and without effect whatever the value.
  void ignore(const char* name) { get(name); }
  // The same of one kind of value, as json_kind names it: "a string".
  void ignore(const char* name, std::string_view kind);
  // Known but not done here: an error unless absent, null or equal to one of `harmless`.
  void refuse(const char* name, std::initializer_list<Json> harmless, const char* advice);
  // The first member that nobody has asked for is an error.
  void refuse_unknown();

  void set_error(const std::string& name, std::string message, std::string code = "invalid_value");
  // Takes over a fault that a nested reader found.
  void adopt(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  // Where a member stands, as errors say it.
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }
  bool ok() const { return !error_; }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  const std::string prefix_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

// A request's body as the object that it has to be. Errors: 400 invalid_json with the member at fault, take_memory's.
ApiExpected<Json> parse_object(std::string_view body, const JsonLimits& limits);

// "a string", "a number" ...: how errors name what they found.
const char* json_kind(const Json& value);

}  // namespace tailrace
