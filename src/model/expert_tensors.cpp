#include "model/expert_tensors.h"

#include <cstring>

#include "weights/mxfp4.h"

namespace tailrace {
namespace {

using Shape = std::vector<int64_t>;

std::string prefix_of(int32_t layer) { return "model.layers." + std::to_string(layer) + ".mlp.experts."; }
const char* own_name(ExpertPart part) {
  return part == ExpertPart::kGate ? "gate_proj" : part == ExpertPart::kUp ? "up_proj" : "down_proj";
}

// Looks tensors up and keeps the first fault.
class Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  TensorView get(const std::string& name, const Shape& shape) {
    const TensorView* tensor = checkpoint_.find(name);
    if (tensor == nullptr) return fault("missing tensors: " + name);
    if (tensor->shape != shape) {
      return fault("misshapen tensors: " + name + " has the shape " + shape_text(tensor->shape) + " instead of " +
                   shape_text(shape));
    }
    return *tensor;
  }
  TensorView get_bytes(const std::string& name, const Shape& shape) {
    TensorView tensor = get(name, shape);
    if (status_.ok() && tensor.format != Format::kU8) fault(name, tensor.format, "U8");
    return tensor;
  }
  TensorView get_floats(const std::string& name, const Shape& shape) {
    TensorView tensor = get(name, shape);
    const Format f = tensor.format;
    const bool plain = f == Format::kF32 || f == Format::kF16 || f == Format::kBF16;
    if (status_.ok() && !plain) fault(name, f, "F32, F16 or BF16");
    return tensor;
  }
  void fault(const std::string& name, Format format, const char* wanted) {
    fault("tensor " + name + " is " + format_traits(format).name + " instead of " + wanted);
  }
  const Status& status() const { return status_; }

 private:
  TensorView fault(const std::string& message) {
    if (status_.ok()) status_ = {StatusCode::kDataLoss, message};
    return {};
  }
  const Checkpoint& checkpoint_;
  Status status_;
};

bool must_be_mxfp4(const ModelConfig& config, const std::string& module) {
  return config.quantization.mxfp4 && !is_exempt(config.quantization, module);
}

// Rows of both halves of gate_up lie in turn.
void interleave(ExpertPart part, ExpertSource* out) {
  if (part == ExpertPart::kDown) return;
  out->row_step = 2;
  out->first_row = part == ExpertPart::kUp ? 1 : 0;
}

ExpertSource shaped(const ModelConfig& config, ExpertPart part) {
  ExpertSource out;
  out.experts = config.experts;
  out.rows = part == ExpertPart::kDown ? config.hidden : config.intermediate;
  out.cols = part == ExpertPart::kDown ? config.intermediate : config.hidden;
  return out;
}

}  // namespace

Expected<ExpertSource> find_experts(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer,
                                    ExpertPart part) {
  ExpertSource out = shaped(config, part);
  Finder finder(checkpoint);
  const std::string own = prefix_of(layer) + own_name(part);
  const std::string joint = prefix_of(layer) + (part == ExpertPart::kDown ? "down_proj" : "gate_up_proj");
  if (finder.has(own + ".weight")) {
    out.values = finder.get(own + ".weight", {out.experts, out.rows, out.cols});
    out.bias = finder.get_floats(own + ".bias", {out.experts, out.rows});
    out.format = out.values.format;
    if (finder.status().ok() && (out.format == Format::kU8 || out.format == Format::kF8E4M3)) {
      finder.fault(own + ".weight", out.format, "a format that experts come in");
    }
  } else {
    interleave(part, &out);
    const int64_t stored_rows = out.rows * out.row_step;
    const bool has_blocks = finder.has(joint + "_blocks");
    if (!has_blocks && finder.has(joint) && must_be_mxfp4(config, joint)) {
      const char* format = format_traits(checkpoint.find(joint)->format).name;
      return fail(StatusCode::kDataLoss,
                  "tensor " + joint + " is " + format + ", though quantization_config does not exempt it");
    }
    if (has_blocks || must_be_mxfp4(config, joint)) {
      if (out.cols % 32 != 0) {
        return fail(StatusCode::kDataLoss, "tensor " + joint + "_blocks: a width of " + std::to_string(out.cols) +
                                               " is no multiple of 32");
      }
      out.format = Format::kMXFP4;
      out.values = finder.get_bytes(joint + "_blocks", {out.experts, stored_rows, out.cols / 32, 16});
      out.scales = finder.get_bytes(joint + "_scales", {out.experts, stored_rows, out.cols / 32});
    } else {
      out.transposed = true;
      out.values = finder.get_floats(joint, {out.experts, out.cols, stored_rows});
      out.format = out.values.format;
    }
    out.bias = finder.get_floats(joint + "_bias", {out.experts, stored_rows});
  }
  if (!finder.status().ok()) return fail(finder.status());
  return out;
}

ExpertSource dummy_experts(const ModelConfig& config, int32_t layer, ExpertPart part) {
  ExpertSource out = shaped(config, part);
  const std::string own = prefix_of(layer) + own_name(part);
  out.format = must_be_mxfp4(config, own) ? Format::kMXFP4 : Format::kBF16;
  out.values.name = own + ".weight";
  out.values.format = out.format;
  out.values.shape = {out.experts, out.rows, out.cols};
  out.values.bytes = stored_row_bytes(out.format, out.cols) * static_cast<size_t>(out.experts * out.rows);
  out.bias.name = own + ".bias";
  out.bias.format = Format::kBF16;
  out.bias.shape = {out.experts * out.rows};
  out.bias.bytes = sizeof(uint16_t) * static_cast<size_t>(out.experts * out.rows);
  return out;
}

TensorView expert_slice(const TensorView& tensor, int64_t experts, int64_t expert) {
  TensorView slice = tensor;
  slice.bytes = tensor.bytes / static_cast<size_t>(experts);
  if (tensor.data != nullptr) slice.data = tensor.data + slice.bytes * static_cast<size_t>(expert);
  return slice;
}

void copy_expert(const ExpertSource& source, int64_t expert, std::byte* out) {
  const std::byte* values = expert_slice(source.values, source.experts, expert).data;
  const std::byte* scales = expert_slice(source.scales, source.experts, expert).data;
  const size_t out_bytes = stored_row_bytes(source.format, source.cols);
  const size_t element = static_cast<size_t>(format_traits(source.format).block_bytes);
  const int64_t stored_rows = source.rows * source.row_step, blocks = source.cols / 32;
  for (int64_t r = 0; r < source.rows; ++r, out += out_bytes) {
    const int64_t row = source.first_row + r * source.row_step;
    if (!source.scales.name.empty()) {
      join_mxfp4_row(values + row * blocks * 16, scales + row * blocks, source.cols, out);
    } else if (source.transposed) {
      for (int64_t k = 0; k < source.cols; ++k) {
        std::memcpy(out + k * element, values + (k * stored_rows + row) * element, element);
      }
    } else {
      std::memcpy(out, values + row * out_bytes, out_bytes);
    }
  }
}

std::vector<float> part_of_biases(const ExpertSource& source, const std::vector<float>& stored) {
  std::vector<float> out(static_cast<size_t>(source.experts * source.rows));
  for (int64_t i = 0; i < source.experts * source.rows; ++i) {
    const int64_t expert = i / source.rows, row = source.first_row + i % source.rows * source.row_step;
    out[i] = stored[expert * source.rows * source.row_step + row];
  }
  return out;
}

}  // namespace tailrace
