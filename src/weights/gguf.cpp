#include "weights/gguf.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "weights/gguf_types.h"

namespace tailrace {
namespace {

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// An element of integer (or bool) type as int64; false when the type is none, or a uint64 is too large.
bool load_integer(GgufType type, const std::byte* p, int64_t* out) {
  switch (type) {
    case GgufType::kUint8: *out = load<uint8_t>(p); return true;
    case GgufType::kBool: *out = load<uint8_t>(p) != 0; return true;
    case GgufType::kInt8: *out = load<int8_t>(p); return true;
    case GgufType::kUint16: *out = load<uint16_t>(p); return true;
    case GgufType::kInt16: *out = load<int16_t>(p); return true;
    case GgufType::kUint32: *out = load<uint32_t>(p); return true;
    case GgufType::kInt32: *out = load<int32_t>(p); return true;
    case GgufType::kInt64: *out = load<int64_t>(p); return true;
    case GgufType::kUint64: {
      const uint64_t value = load<uint64_t>(p);
      *out = static_cast<int64_t>(value);
      return value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    }
    default: return false;
  }
}

std::string load_string(const std::byte* p) {
  return std::string(reinterpret_cast<const char*>(p + 8), load<uint64_t>(p));
}

// An absent key gives the fallback; other errors stay.
template <typename T>
Expected<T> value_or(Expected<T> value, T fallback) {
  if (!value && value.error().code() == StatusCode::kNotFound) return fallback;
  return value;
}

}  // namespace

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_) out.push_back(key);
  return out;
}

Expected<const GgufFile::Value*> GgufFile::find(std::string_view key) const {
  const auto it = values_.find(key);
  if (it != values_.end()) return &it->second;
  return fail(StatusCode::kNotFound, name() + ": the key " + std::string(key) + " is missing");
}

Status GgufFile::wrong_type(std::string_view key, const char* wanted) const {
  return Status(StatusCode::kDataLoss, name() + ": the key " + std::string(key) + " is not " + wanted);
}

Expected<int64_t> GgufFile::get_i64(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  int64_t out = 0;
  const bool is_integer = (*value)->type != GgufType::kBool && !(*value)->is_array;
  if (!is_integer || !load_integer((*value)->type, (*value)->data, &out)) return fail(wrong_type(key, "an integer"));
  return out;
}

Expected<uint64_t> GgufFile::get_u64(std::string_view key) const {
  const Expected<int64_t> value = get_i64(key);
  if (!value) return fail(value.error());
  if (*value < 0) return fail(wrong_type(key, "a non-negative integer"));
  return static_cast<uint64_t>(*value);
}

Expected<double> GgufFile::get_f64(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  double out = 0;
  int64_t integer = 0;
  if ((*value)->is_array) return fail(wrong_type(key, "a number"));
  if ((*value)->type == GgufType::kFloat32) {
    out = load<float>((*value)->data);
  } else if ((*value)->type == GgufType::kFloat64) {
    out = load<double>((*value)->data);
  } else if ((*value)->type != GgufType::kBool && load_integer((*value)->type, (*value)->data, &integer)) {
    out = static_cast<double>(integer);
  } else {
    return fail(wrong_type(key, "a number"));
  }
  if (!std::isfinite(out)) return fail(wrong_type(key, "a finite number"));
  return out;
}

Expected<bool> GgufFile::get_bool(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  if ((*value)->type != GgufType::kBool || (*value)->is_array) return fail(wrong_type(key, "a boolean"));
  return load<uint8_t>((*value)->data) != 0;
}

Expected<std::string> GgufFile::get_string(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  if ((*value)->type != GgufType::kString || (*value)->is_array) return fail(wrong_type(key, "a string"));
  return load_string((*value)->data);
}

Expected<std::vector<std::string>> GgufFile::get_strings(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  if ((*value)->type != GgufType::kString || !(*value)->is_array) return fail(wrong_type(key, "an array of strings"));
  std::vector<std::string> out;
  out.reserve((*value)->count);
  const std::byte* at = (*value)->data;
  for (uint64_t i = 0; i < (*value)->count; ++i) {
    out.push_back(load_string(at));
    at += 8 + out.back().size();
  }
  return out;
}

Expected<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  if (!(*value)->is_array) return fail(wrong_type(key, "an array of integers"));
  std::vector<int64_t> out((*value)->count);
  const size_t size = gguf_type_bytes((*value)->type);
  for (uint64_t i = 0; i < (*value)->count; ++i) {
    if (!load_integer((*value)->type, (*value)->data + i * size, &out[i])) {
      return fail(wrong_type(key, "an array of integers"));
    }
  }
  return out;
}

Expected<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  const Expected<const Value*> value = find(key);
  if (!value) return fail(value.error());
  const bool is_double = (*value)->type == GgufType::kFloat64;
  if (!(*value)->is_array || (!is_double && (*value)->type != GgufType::kFloat32)) {
    return fail(wrong_type(key, "an array of floats"));
  }
  std::vector<float> out((*value)->count);
  for (uint64_t i = 0; i < (*value)->count; ++i) {
    out[i] = is_double ? static_cast<float>(load<double>((*value)->data + i * 8)) : load<float>((*value)->data + i * 4);
  }
  return out;
}

Expected<uint64_t> GgufFile::get_u64_or(std::string_view key, uint64_t fallback) const {
  return value_or(get_u64(key), fallback);
}
Expected<double> GgufFile::get_f64_or(std::string_view key, double fallback) const {
  return value_or(get_f64(key), fallback);
}
Expected<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  return value_or(get_bool(key), fallback);
}
Expected<std::string> GgufFile::get_string_or(std::string_view key, std::string fallback) const {
  return value_or(get_string(key), std::move(fallback));
}

}  // namespace tailrace
