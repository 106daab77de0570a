// A GGUF file (version 2 or 3): its metadata and its tensors under the file's own names, all bounds checked at open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/gguf_types.h"
#include "weights/mapped_file.h"
#include "weights/tensor.h"

namespace tailrace {

class GgufFile {
 public:
  // Errors name the file, the tensor or key, and the reason; kDataLoss for broken files, kUnsupported for a tensor type
  // that is well-formed but not in base/format.h.
  static Expected<std::shared_ptr<GgufFile>> open(const std::string& path);
  // `bytes` must outlive the object.
  static Expected<std::shared_ptr<GgufFile>> open_memory(std::span<const std::byte> bytes, const std::string& name);

  const std::string& name() const { return file_->name(); }
  uint32_t version() const { return version_; }
  const std::shared_ptr<MappedFile>& file() const { return file_; }

  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  std::vector<std::string> keys() const;

  // Metadata by key: kNotFound when absent, kDataLoss when the stored type or value does not fit what is asked.
  Expected<uint64_t> get_u64(std::string_view key) const;  // any integer type, not negative
  Expected<int64_t> get_i64(std::string_view key) const;   // any integer type
  Expected<double> get_f64(std::string_view key) const;    // float32 or float64, finite; integers too
  Expected<bool> get_bool(std::string_view key) const;
  Expected<std::string> get_string(std::string_view key) const;
  Expected<std::vector<std::string>> get_strings(std::string_view key) const;
  Expected<std::vector<int64_t>> get_ints(std::string_view key) const;   // array of any integer type or bool
  Expected<std::vector<float>> get_floats(std::string_view key) const;   // array of float32 or float64

  // As above, but an absent key gives `fallback`; a key of the wrong type is still an error.
  Expected<uint64_t> get_u64_or(std::string_view key, uint64_t fallback) const;
  Expected<double> get_f64_or(std::string_view key, double fallback) const;
  Expected<bool> get_bool_or(std::string_view key, bool fallback) const;
  Expected<std::string> get_string_or(std::string_view key, std::string fallback) const;

  // In file order, with the file's names (blk.0.attn_q.weight); shapes outermost first.
  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  friend class GgufParser;

  // Where a value lies in the file; it was bounds checked at open.
  struct Value {
    GgufType type = GgufType::kUint8;  // of the value, or of the elements of an array; never kArray
    bool is_array = false;
    uint64_t count = 1;                // elements
    const std::byte* data = nullptr;   // strings: a uint64 length, then the bytes
  };

  GgufFile() = default;
  Expected<const Value*> find(std::string_view key) const;
  Status wrong_type(std::string_view key, const char* wanted) const;

  std::shared_ptr<MappedFile> file_;
  uint32_t version_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<TensorView> tensors_;
};

}  // namespace tailrace
