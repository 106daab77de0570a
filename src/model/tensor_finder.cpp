#include "model/tensor_finder.h"

namespace tailrace {

Status TensorFault::status() const {
  switch (kind) {
    case Kind::kNone: return Status();
    case Kind::kMissing: return {StatusCode::kDataLoss, "missing tensors: " + text};
    case Kind::kMisshapen: return {StatusCode::kDataLoss, "misshapen tensors: " + text};
    case Kind::kOther: break;
  }
  return {StatusCode::kDataLoss, "tensor " + text};
}

TensorView TensorFinder::get(const std::string& name, const Shape& shape) {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    add_fault(TensorFault::Kind::kMissing, name);
    return {};
  }
  if (tensor->shape == shape) return *tensor;
  add_fault(TensorFault::Kind::kMisshapen,
            name + " has the shape " + shape_text(tensor->shape) + " instead of " + shape_text(shape));
  return {};
}

TensorView TensorFinder::get(const std::string& name, const Shape& shape, Format format) {
  const bool was_ok = ok();
  TensorView tensor = get(name, shape);
  if (was_ok && ok() && tensor.format != format) add_fault(name, tensor.format, format_traits(format).name);
  return tensor;
}

TensorView TensorFinder::get_floats(const std::string& name, const Shape& shape) {
  const bool was_ok = ok();
  TensorView tensor = get(name, shape);
  const Format f = tensor.format;
  const bool plain = f == Format::kF32 || f == Format::kF16 || f == Format::kBF16;
  if (was_ok && ok() && !plain) add_fault(name, f, "F32, F16 or BF16");
  return tensor;
}

TensorView TensorFinder::get_number(const std::string& name) {
  const TensorView* tensor = find(name);
  return get_floats(name, tensor != nullptr && tensor->shape.empty() ? Shape{} : Shape{1});
}

void TensorFinder::add_fault(TensorFault::Kind kind, const std::string& text) {
  if (ok()) fault_ = {kind, text};
}

void TensorFinder::add_fault(const std::string& name, Format format, const char* wanted) {
  add_fault(TensorFault::Kind::kOther, name + " is " + format_traits(format).name + " instead of " + wanted);
}

}  // namespace tailrace
