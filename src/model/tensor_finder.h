// TensorFinder: looks tensors of a checkpoint up by name, shape and type, and keeps the first fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/checkpoint.h"

namespace tailrace {

struct TensorFault {
  enum class Kind : uint8_t { kNone, kMissing, kMisshapen, kOther };
  Kind kind = Kind::kNone;
  std::string text;  // begins with the tensor's name

  Status status() const;  // kDataLoss
};

class TensorFinder {
 public:
  using Shape = std::vector<int64_t>;
  explicit TensorFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  bool ok() const { return fault_.kind == TensorFault::Kind::kNone; }
  const TensorFault& fault() const { return fault_; }

  const TensorView* find(const std::string& name) const { return checkpoint_.find(name); }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  // Empty after a fault: missing, or of another shape or type.
  TensorView get(const std::string& name, const Shape& shape);
  TensorView get(const std::string& name, const Shape& shape, Format format);
  TensorView get_floats(const std::string& name, const Shape& shape);  // F32, F16 or BF16
  TensorView get_number(const std::string& name);                      // the same, [] or [1]
  void add_fault(TensorFault::Kind kind, const std::string& text);
  void add_fault(const std::string& name, Format format, const char* wanted);

 private:
  const Checkpoint& checkpoint_;
  TensorFault fault_;
};

}  // namespace tailrace
