#include "model/matrix_source.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "weights/dequantize.h"
#include "weights/nvfp4.h"

namespace tailrace {
namespace {

using Kind = TensorFault::Kind;

void add_nvfp4(TensorFinder& finder, const std::string& values, const std::string& blocks, const std::string& scale,
               MatrixSource* out) {
  if (out->cols % 16 != 0) {
    return finder.add_fault(Kind::kOther,
                            values + ": a width of " + std::to_string(out->cols) + " is no multiple of 16");
  }
  out->format = Format::kNVFP4;
  out->values = finder.get(values, {out->rows, out->cols / 2}, Format::kU8);
  out->block_scales = finder.get(blocks, {out->rows, out->cols / 16}, Format::kF8E4M3);
  out->scales = finder.get_number(scale);
}

void add_fp8_scales(TensorFinder& finder, const Quantization& q, const std::string& name, MatrixSource* out) {
  if (!q.fp8 && !q.by_tensor) {
    return finder.add_fault(Kind::kOther, name + " is F8_E4M3, of which quantization_config says nothing");
  }
  const bool inverse = q.by_tensor ? finder.has(name + "_scale_inv") : q.suffix == "_scale_inv";
  const std::string scale = name + (inverse ? "_scale_inv" : "_scale");
  const TensorView* found = finder.find(scale);
  if (found == nullptr) return finder.add_fault(Kind::kMissing, scale);
  out->layout = q.by_tensor ? layout_of(found->shape, out->rows) : q.layout;
  const std::string fault = scale_fault(out->layout, *found, out->rows, out->cols);
  if (!fault.empty()) return finder.add_fault(Kind::kOther, scale + " " + fault);
  out->scales = *found;
}

// Scales beside a matrix in a format that has none: it was meant to be quantised, or is not what they belong to.
void refuse_scales(TensorFinder& finder, const std::string& name, Format format) {
  for (const char* suffix : {"_scale_2", "_global_scale", "_scale_inv", "_scale"}) {
    if (!finder.has(name + suffix)) continue;
    return finder.add_fault(Kind::kOther, name + " is " + format_traits(format).name + ", though " + name + suffix +
                                              " is there");
  }
}

Status not_finite(const TensorView& tensor, const std::string& value) {
  return {StatusCode::kDataLoss, "tensor " + printable(tensor.name) + ": " + value + " is not finite"};
}

}  // namespace

MatrixSource find_matrix(TensorFinder& finder, const Quantization& quantization, const std::string& name, int64_t rows,
                         int64_t cols) {
  MatrixSource out;
  out.rows = rows, out.cols = cols;
  const std::string packed = name + "_packed";
  if (finder.has(packed)) {
    add_nvfp4(finder, packed, name + "_scale", name + "_global_scale", &out);
    out.divides = true;
    return out;
  }
  const TensorView* found = finder.find(name);
  const bool has_second = finder.has(name + "_scale_2");
  if (found != nullptr && found->format == Format::kU8 && (quantization.by_tensor || has_second)) {
    add_nvfp4(finder, name, name + "_scale", name + "_scale_2", &out);
    return out;
  }
  out.values = finder.get(name, {rows, cols});
  out.format = out.values.format;
  if (!finder.ok()) return out;
  if (out.format == Format::kU8) {
    finder.add_fault(Kind::kOther, name + " is U8, bytes without a meaning of their own");
  } else if (out.format == Format::kF8E4M3) {
    add_fp8_scales(finder, quantization, name, &out);
  } else if (must_be_fp8(quantization, name)) {
    finder.add_fault(Kind::kOther, name + " is " + format_traits(out.format).name +
                                       ", though quantization_config does not exempt it");
  } else {
    refuse_scales(finder, name, out.format);
  }
  return out;
}

MatrixSource dummy_matrix(const Quantization& quantization, const std::string& name, int64_t rows, int64_t cols) {
  MatrixSource out;
  out.rows = rows, out.cols = cols;
  out.format = planned_format(quantization, name);
  out.values.name = name;
  out.values.format = out.format;
  out.values.shape = {rows, cols};
  out.values.bytes = out.packed_rows_bytes();
  if (out.format != Format::kF8E4M3 && out.format != Format::kNVFP4) return out;
  out.scales.name = name + "_scale";
  if (quantization.fp8) out.layout = quantization.layout;
  return out;
}

std::vector<TensorView> MatrixSource::stored() const {
  if (in_place()) return {values};
  return {values, block_scales};
}

void copy_matrix(const MatrixSource& source, const std::vector<TensorView>& stored, std::byte* out) {
  CHECK(source.format == Format::kNVFP4);
  const size_t row_bytes = stored_row_bytes(source.format, source.cols);
  for (int64_t row = 0; row < source.rows; ++row, out += row_bytes) {
    join_nvfp4_row(stored[0].data + row * source.cols / 2, stored[1].data + row * source.cols / 16, source.cols, out);
  }
}

void requantize_to_fp8(MatrixSource* source) {
  CHECK(!source->scaled() && format_traits(source->format).block_elems == 1);
  source->requantized = true;
  source->format = Format::kF8E4M3;
  source->layout = ScaleLayout::kChannel;
}

Status requantize_rows(const MatrixSource& source, const std::byte* stored, int64_t rows, std::byte* out, float* scales) {
  constexpr float kLargest = 448.0f;
  const size_t row_bytes = stored_row_bytes(source.values.format, source.cols);
  std::vector<float> values(static_cast<size_t>(source.cols));
  for (int64_t row = 0; row < rows; ++row, stored += row_bytes) {
    Status status = dequantize_row(source.values.format, stored, source.cols, values.data());
    if (!status.ok()) return status;
    float largest = 0.0f;
    for (float value : values) {
      if (!std::isfinite(value)) return not_finite(source.values, "a value");
      largest = std::max(largest, std::abs(value));
    }
    // Of the smallest floats no quotient keeps 448 in range: they are as good as zeros.
    scales[row] = largest / kLargest > 0.0f ? largest / kLargest : 1.0f;
    for (float value : values) *out++ = static_cast<std::byte>(float_to_e4m3(value / scales[row]));
  }
  return Status();
}

// 8-bit floats have no infinity; a NaN is a broken file, and would spread to every token.
Status check_numbers(const MatrixSource& source, const std::byte* rows, size_t bytes, int64_t first) {
  if (source.format == Format::kNVFP4) return check_nvfp4(source.block_scales, rows, bytes);
  if (source.format != Format::kF8E4M3) return Status();
  constexpr size_t kChunk = 4096;
  const auto is_nan = [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; };
  for (size_t begin = 0; begin < bytes; begin += kChunk) {
    const size_t end = std::min(bytes, begin + kChunk);
    bool any = false;
    for (size_t i = begin; i < end; ++i) any |= is_nan(rows[i]);
    if (!any) continue;
    const auto at = static_cast<size_t>(std::find_if(rows + begin, rows + end, is_nan) - rows);
    return not_finite(source.values, "value " + std::to_string(static_cast<size_t>(first * source.cols) + at));
  }
  return Status();
}

Status check_scales(const MatrixSource& source, const std::vector<float>& stored) {
  const bool zeros = source.layout != ScaleLayout::kTensor;
  const auto reason = [&](float scale) -> const char* {
    if (!std::isfinite(scale)) return "not finite";
    if (scale < 0.0f) return "negative";
    if (scale == 0.0f) return zeros ? nullptr : "0";
    return source.divides && !std::isfinite(1.0f / scale) ? "too small to divide by" : nullptr;
  };
  for (size_t i = 0; i < stored.size(); ++i) {
    const char* fault = reason(stored[i]);
    if (fault == nullptr) continue;
    return {StatusCode::kDataLoss,
            "tensor " + printable(source.scales.name) + ": scale " + std::to_string(i) + " is " + fault};
  }
  return Status();
}

std::vector<float> scales_of(const MatrixSource& source, std::vector<float> stored) {
  if (source.divides) {
    for (float& scale : stored) scale = 1.0f / scale;
  }
  return expand_scales(source.layout, stored, source.rows, source.cols);
}

}  // namespace tailrace
