#include "model/expert_tensors.h"

#include <cstring>

#include "base/check.h"
#include "weights/mxfp4.h"

namespace tailrace {
namespace {

using Kind = TensorFault::Kind;

std::string prefix_of(const ModelConfig& config, int32_t layer) {
  return "model.layers." + std::to_string(layer) + "." + config.experts_name + ".";
}

bool must_be_mxfp4(const ModelConfig& config, const std::string& module) {
  return config.quantization.mxfp4 && !is_exempt(config.quantization, module);
}

// The part of a tensor that one expert has.
TensorView slice_of(const TensorView& tensor, int64_t experts, int64_t expert) {
  TensorView slice = tensor;
  slice.bytes = tensor.bytes / static_cast<size_t>(experts);
  if (tensor.data != nullptr) slice.data = tensor.data + slice.bytes * static_cast<size_t>(expert);
  return slice;
}

ExpertSource shaped(const ModelConfig& config, ExpertPart part) {
  ExpertSource out;
  out.experts = config.experts;
  out.rows = part == ExpertPart::kDown ? config.hidden : config.expert_intermediate;
  out.cols = part == ExpertPart::kDown ? config.expert_intermediate : config.hidden;
  out.stored_rows = out.rows;
  return out;
}

// gate_up holds the rows of both.
void share_rows(const ModelConfig& config, ExpertPart part, ExpertSource* out) {
  if (part == ExpertPart::kDown) return;
  out->stored_rows = 2 * out->rows;
  if (config.expert_halves) {
    out->first_row = part == ExpertPart::kUp ? out->rows : 0;
  } else {
    out->row_step = 2;
    out->first_row = part == ExpertPart::kUp ? 1 : 0;
  }
}

// Every expert's own tensors, all of one format.
void find_each(TensorFinder& finder, const ModelConfig& config, const std::string& prefix, ExpertPart part,
               ExpertSource* out) {
  if (config.expert_bias) return finder.add_fault(Kind::kMissing, prefix + projection_name(part) + ".bias");
  for (int64_t e = 0; e < out->experts && finder.ok(); ++e) {
    const std::string name = prefix + std::to_string(e) + "." + projection_name(part) + ".weight";
    out->each.push_back(find_matrix(finder, config.quantization, name, out->rows, out->cols));
    const MatrixSource &matrix = out->each.back(), &first = out->each[0];
    if (matrix.format == first.format && matrix.layout == first.layout) continue;
    const char *format = format_traits(matrix.format).name, *other = format_traits(first.format).name;
    finder.add_fault(Kind::kOther, name + " is " + format + ", though expert 0's is " + other +
                                       (matrix.format == first.format ? " with scales of another layout" : ""));
  }
  if (finder.ok()) out->format = out->each[0].format;
}

// One tensor of all experts of a part.
void find_own(TensorFinder& finder, const ModelConfig& config, const std::string& own, ExpertSource* out) {
  out->values = finder.get(own + ".weight", {out->experts, out->rows, out->cols});
  if (config.expert_bias) out->bias = finder.get_floats(own + ".bias", {out->experts, out->rows});
  out->format = out->values.format;
  if (finder.ok() && (out->format == Format::kU8 || out->format == Format::kF8E4M3)) {
    finder.add_fault(own + ".weight", out->format, "a format that experts come in");
  }
}

void find_joint(TensorFinder& finder, const ModelConfig& config, const std::string& prefix, ExpertPart part,
                ExpertSource* out) {
  share_rows(config, part, out);
  const std::string joint = prefix + (part == ExpertPart::kDown ? "down_proj" : "gate_up_proj");
  const bool has_blocks = finder.has(joint + "_blocks"), demanded = must_be_mxfp4(config, joint);
  const bool fp8_demanded = must_be_fp8(config.quantization, joint + ".weight");
  const std::string* listing = listing_of(config.quantization, prefix + "0." + projection_name(part));
  if (!has_blocks && finder.has(joint) && listing != nullptr) {
    const char* format = format_traits(finder.find(joint)->format).name;
    return finder.add_fault(Kind::kOther, joint + " holds the experts in " + format +
                                              ", though quantized_layers lists " + printable(*listing));
  }
  if (!has_blocks && finder.has(joint) && (demanded || fp8_demanded)) {
    const char* format = format_traits(finder.find(joint)->format).name;
    return finder.add_fault(Kind::kOther, joint + " is " + format + ", though quantization_config does not exempt it");
  }
  if (has_blocks || demanded) {
    if (out->cols % 32 != 0) {
      return finder.add_fault(Kind::kOther, joint + "_blocks: a width of " + std::to_string(out->cols) +
                                                " is no multiple of 32");
    }
    out->format = Format::kMXFP4;
    out->values = finder.get(joint + "_blocks", {out->experts, out->stored_rows, out->cols / 32, 16}, Format::kU8);
    out->scales = finder.get(joint + "_scales", {out->experts, out->stored_rows, out->cols / 32}, Format::kU8);
  } else {
    out->transposed = !config.expert_halves;
    const int64_t rows = out->stored_rows, cols = out->cols;
    using Shape = TensorFinder::Shape;
    const Shape shape = out->transposed ? Shape{out->experts, cols, rows} : Shape{out->experts, rows, cols};
    out->values = finder.get_floats(joint, shape);
    out->format = out->values.format;
  }
  if (config.expert_bias) out->bias = finder.get_floats(joint + "_bias", {out->experts, out->stored_rows});
}

}  // namespace

const char* projection_name(ExpertPart part) {
  return part == ExpertPart::kGate ? "gate_proj" : part == ExpertPart::kUp ? "up_proj" : "down_proj";
}

std::vector<TensorView> ExpertSource::stored(int64_t expert) const {
  std::vector<TensorView> out;
  if (!each.empty()) return each[expert].stored();
  out.push_back(slice_of(values, experts, expert));
  if (!scales.name.empty()) out.push_back(slice_of(scales, experts, expert));
  if (!in_place()) return out;
  TensorView& slice = out[0];
  const size_t row_bytes = slice.bytes / static_cast<size_t>(stored_rows);
  slice.bytes = row_bytes * static_cast<size_t>(rows);
  if (slice.data != nullptr) slice.data += row_bytes * static_cast<size_t>(first_row);
  return out;
}

bool ExpertSource::in_place() const {
  if (!each.empty()) return each[0].in_place();
  return row_step == 1 && !transposed && scales.name.empty();
}

Expected<ExpertSource> find_experts(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer,
                                    ExpertPart part) {
  ExpertSource out = shaped(config, part);
  TensorFinder finder(checkpoint);
  const std::string prefix = prefix_of(config, layer), own = prefix + projection_name(part);
  const std::string first = prefix + "0." + projection_name(part) + ".weight";
  if (finder.has(first) || finder.has(first + "_packed")) {
    find_each(finder, config, prefix, part, &out);
  } else if (finder.has(own + ".weight")) {
    find_own(finder, config, own, &out);
  } else {
    find_joint(finder, config, prefix, part, &out);
  }
  if (!finder.ok()) return fail(finder.fault().status());
  return out;
}

bool join_shared_expert(const MatrixSource& shared, ExpertSource* source) {
  std::vector<MatrixSource> each = source->each;
  const bool one_tensor = each.empty();
  if (!source->bias.name.empty()) return false;
  if (one_tensor && (!source->in_place() || format_traits(source->format).block_elems != 1)) return false;
  for (int64_t e = 0; one_tensor && e < source->experts; ++e) {
    MatrixSource& matrix = each.emplace_back();
    matrix.values = source->stored(e)[0];
    matrix.values.shape = {source->rows, source->cols};
    matrix.format = source->format, matrix.rows = source->rows, matrix.cols = source->cols;
  }
  const MatrixSource& first = each[0];
  const bool alike = shared.format == first.format && shared.rows == first.rows && shared.cols == first.cols &&
                     shared.scaled() == first.scaled() && shared.layout == first.layout &&
                     shared.in_place() == first.in_place();
  if (!alike || shared.requantized) return false;
  each.push_back(shared);
  *source = {.each = std::move(each),
             .format = source->format,
             .experts = source->experts + 1,
             .rows = source->rows,
             .cols = source->cols,
             .stored_rows = source->rows};
  return true;
}

ExpertSource dummy_experts(const ModelConfig& config, int32_t layer, ExpertPart part) {
  ExpertSource out = shaped(config, part);
  const std::string prefix = prefix_of(config, layer), own = prefix + projection_name(part);
  if (planned_format(config.quantization, prefix + "0." + projection_name(part) + ".weight") != Format::kBF16) {
    for (int64_t e = 0; e < out.experts; ++e) {
      const std::string name = prefix + std::to_string(e) + "." + projection_name(part) + ".weight";
      out.each.push_back(dummy_matrix(config.quantization, name, out.rows, out.cols));
    }
    out.format = out.each[0].format;
  } else {
    out.format = must_be_mxfp4(config, own) ? Format::kMXFP4 : Format::kBF16;
    out.values.name = own + ".weight";
    out.values.format = out.format;
    out.values.shape = {out.experts, out.rows, out.cols};
    out.values.bytes = stored_row_bytes(out.format, out.cols) * static_cast<size_t>(out.experts * out.rows);
  }
  if (!config.expert_bias) return out;
  out.bias.name = own + ".bias";
  out.bias.format = Format::kBF16;
  out.bias.shape = {out.experts * out.rows};
  out.bias.bytes = sizeof(uint16_t) * static_cast<size_t>(out.experts * out.rows);
  return out;
}

void copy_expert(const ExpertSource& source, const std::vector<TensorView>& stored, std::byte* out) {
  CHECK(!source.in_place());
  if (!source.each.empty()) return copy_matrix(source.each[0], stored, out);
  const std::byte* values = stored[0].data;
  const size_t out_bytes = stored_row_bytes(source.format, source.cols);
  const size_t element = static_cast<size_t>(format_traits(source.format).block_bytes);
  const int64_t blocks = source.cols / 32;
  for (int64_t r = 0; r < source.rows; ++r, out += out_bytes) {
    const int64_t row = source.first_row + r * source.row_step;
    if (!source.scales.name.empty()) {
      join_mxfp4_row(values + row * blocks * 16, stored[1].data + row * blocks, source.cols, out);
      continue;
    }
    for (int64_t k = 0; k < source.cols; ++k) {
      std::memcpy(out + k * element, values + (k * source.stored_rows + row) * element, element);
    }
  }
}

Status check_expert(const ExpertSource& source, int64_t expert, const std::byte* rows) {
  const size_t bytes = stored_row_bytes(source.format, source.cols) * static_cast<size_t>(source.rows);
  if (!source.each.empty()) return check_numbers(source.each[expert], rows, bytes);
  if (source.format != Format::kMXFP4) return Status();
  return check_mxfp4(source.scales.name.empty() ? source.values : source.scales, rows, bytes);
}

std::vector<float> part_of_biases(const ExpertSource& source, const std::vector<float>& stored) {
  std::vector<float> out(static_cast<size_t>(source.experts * source.rows));
  for (int64_t i = 0; i < source.experts * source.rows; ++i) {
    const int64_t expert = i / source.rows, row = source.first_row + i % source.rows * source.row_step;
    out[i] = stored[expert * source.stored_rows + row];
  }
  return out;
}

}  // namespace tailrace
