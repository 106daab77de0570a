#include "server/json_fields.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace tailrace {
namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

const char* json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

const Json* FieldReader::get(const char* name) {
  known_.push_back(name);
  if (error_) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::set_error(const std::string& name, std::string message, std::string code) {
  if (!error_) error_ = ApiError{400, prefix_ + name + " " + message, prefix_ + name, std::move(code)};
}

ApiExpected<Json> parse_object(std::string_view body, const JsonLimits& limits) {
  auto parsed = parse_json(body, limits);
  if (!parsed && parsed.error().code != StatusCode::kInvalidArgument) {
    return api_fail(from_status(Status(parsed.error().code, parsed.error().message)));
  }
  if (!parsed) return api_fail({400, parsed.error().message, parsed.error().top_level_key, "invalid_json"});
  if (!parsed->is_object()) {
    return api_fail({400, std::string("the body must be a JSON object, not ") + json_kind(*parsed), "", "invalid_json"});
  }
  return std::move(*parsed);
}

void FieldReader::read(const char* name, bool& out) {
  if (const Json* value = get(name)) {
    if (!value->is_boolean()) return set_error(name, std::string("must be a boolean, not ") + json_kind(*value));
    out = value->get<bool>();
  }
}

void FieldReader::read(const char* name, std::optional<bool>& out) {
  bool value = false;
  if (get(name) == nullptr) return;
  read(name, value);
  if (ok()) out = value;
}

void FieldReader::read(const char* name, std::string& out, size_t max_bytes) {
  if (const Json* value = get(name)) {
    if (!value->is_string()) return set_error(name, std::string("must be a string, not ") + json_kind(*value));
    out = value->get<std::string>();
    if (out.size() > max_bytes) set_error(name, "is longer than " + std::to_string(max_bytes) + " bytes");
  }
}

void FieldReader::read(const char* name, std::optional<float>& out, double lo, double hi, bool lo_open) {
  if (const Json* value = get(name)) {
    if (!value->is_number()) return set_error(name, std::string("must be a number, not ") + json_kind(*value));
    const double number = value->get<double>();
    if (!(number >= lo && number <= hi && !(lo_open && number == lo))) {
      return set_error(name, "must be in " + std::string(lo_open ? "(" : "[") + number_text(lo) + ", " +
                                 number_text(hi) + "], not " + number_text(number));
    }
    const float narrow = static_cast<float>(number);
    out = lo_open && !(narrow > lo) ? std::numeric_limits<float>::min() : narrow;  // 1e-300 is still above 0
  }
}

void FieldReader::read(const char* name, std::optional<int64_t>& out, int64_t lo, int64_t hi) {
  if (const Json* value = get(name)) {
    if (!value->is_number_integer()) {
      return set_error(name, std::string("must be an integer, not ") +
                                 (value->is_number() ? value->dump() : std::string(json_kind(*value))));
    }
    const bool too_big = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const int64_t number = too_big ? INT64_MAX : value->get<int64_t>();
    if (too_big || number < lo || number > hi) {
      return set_error(name, "must be in [" + std::to_string(lo) + ", " + std::to_string(hi) + "], not " + value->dump());
    }
    out = number;
  }
}

void FieldReader::read(const char* name, std::optional<int32_t>& out, int32_t lo, int32_t hi) {
  std::optional<int64_t> wide;
  read(name, wide, int64_t{lo}, int64_t{hi});
  if (wide) out = static_cast<int32_t>(*wide);
}

void FieldReader::ignore(const char* name, std::string_view kind) {
  const Json* value = get(name);
  if (value == nullptr || json_kind(*value) == kind) return;
  set_error(name, "must be " + std::string(kind) + ", not " + json_kind(*value));
}

void FieldReader::refuse(const char* name, std::initializer_list<Json> harmless, const char* advice) {
  const Json* value = get(name);
  if (value == nullptr || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) return;
  set_error(name, std::string("is not supported: ") + advice, "unsupported_parameter");
}

void FieldReader::refuse_unknown() {
  if (error_) return;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string shown = name.substr(0, 100);
    return set_error(shown, "is not a field this server knows", "unknown_parameter");
  }
}

}  // namespace tailrace
