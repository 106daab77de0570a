// Writes GGUF files from C++: valid ones, and broken ones for the reader's tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "weights/gguf_types.h"

namespace tailrace {

inline uint32_t ggml_type_number(Format format) {
  constexpr uint32_t kNumbers[kNumFormats] = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14, 0, 39};
  return kNumbers[static_cast<int>(format)];
}

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as stored
    uint32_t type = 0;
    std::string data;
    std::optional<uint64_t> offset;  // instead of the right one
  };
  std::vector<Tensor> tensors;
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the layout; say general.alignment too when it is another
  std::optional<uint64_t> num_tensors, num_entries;  // instead of the right ones

  void u32(std::string_view key, uint32_t value) { scalar(key, GgufType::kUint32, value); }
  void i32(std::string_view key, int32_t value) { scalar(key, GgufType::kInt32, value); }
  void f32(std::string_view key, float value) { scalar(key, GgufType::kFloat32, value); }
  void boolean(std::string_view key, bool value) { scalar(key, GgufType::kBool, static_cast<uint8_t>(value)); }
  void string(std::string_view key, std::string_view value) {
    entry(key, GgufType::kString);
    put_string(&entries_, value);
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    array(key, GgufType::kString, values.size());
    for (const std::string& value : values) put_string(&entries_, value);
  }
  void i32s(std::string_view key, const std::vector<int32_t>& values) { array_of(key, GgufType::kInt32, values); }
  void f32s(std::string_view key, const std::vector<float>& values) { array_of(key, GgufType::kFloat32, values); }
  // Any bytes as a value of any type number.
  void raw(std::string_view key, uint32_t type, std::string_view bytes) {
    entry(key, static_cast<GgufType>(type));
    entries_ += bytes;
  }

  // `shape` outermost first, as everywhere outside the file.
  void tensor(std::string_view name, Format format, const std::vector<int64_t>& shape, std::string data) {
    const std::vector<uint64_t> dims(shape.rbegin(), shape.rend());
    tensors.push_back({std::string(name), dims, ggml_type_number(format), std::move(data), {}});
  }

  std::string bytes() const {
    std::string out = "GGUF";
    put(&out, version);
    put(&out, num_tensors.value_or(tensors.size()));
    put(&out, num_entries.value_or(num_entries_));
    out += entries_;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      put_string(&out, tensor.name);
      put(&out, static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) put(&out, dim);
      put(&out, tensor.type);
      put(&out, tensor.offset.value_or(offset));
      offset = padded(offset + tensor.data.size());
    }
    for (const Tensor& tensor : tensors) {
      out.resize(padded(out.size()));
      out += tensor.data;
    }
    out.resize(padded(out.size()));
    return out;
  }
  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    file.exceptions(std::ios::failbit | std::ios::badbit);
    file << bytes();
  }

 private:
  template <typename T>
  static void put(std::string* out, T value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_string(std::string* out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    *out += text;
  }
  uint64_t padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }
  void entry(std::string_view key, GgufType type) {
    ++num_entries_;
    put_string(&entries_, key);
    put(&entries_, static_cast<uint32_t>(type));
  }
  template <typename T>
  void scalar(std::string_view key, GgufType type, T value) {
    entry(key, type);
    put(&entries_, value);
  }
  void array(std::string_view key, GgufType type, uint64_t count) {
    entry(key, GgufType::kArray);
    put(&entries_, static_cast<uint32_t>(type));
    put(&entries_, count);
  }
  template <typename T>
  void array_of(std::string_view key, GgufType type, const std::vector<T>& values) {
    array(key, type, values.size());
    for (const T value : values) put(&entries_, value);
  }

  std::string entries_;
  uint64_t num_entries_ = 0;
};

}  // namespace tailrace
