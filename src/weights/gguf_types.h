// The numbers that GGUF gives to metadata types and tensor types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/format.h"

namespace tailrace {

enum class GgufType : uint32_t {
  kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kFloat32, kBool, kString, kArray, kUint64, kInt64, kFloat64,
};
inline constexpr uint32_t kNumGgufTypes = 13;

// Bytes of a value; 0 for strings and arrays.
constexpr size_t gguf_type_bytes(GgufType type) {
  constexpr uint8_t kBytes[kNumGgufTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

struct GgmlType {
  const char* name;
  std::optional<Format> format;  // empty: well-formed, but not computed on here
};

// What the tensor type number means; null for numbers that GGUF does not define.
const GgmlType* find_ggml_type(uint32_t number);

}  // namespace tailrace
