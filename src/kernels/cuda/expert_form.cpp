#include "kernels/cuda/expert_form.h"

#include <cstring>
#include <string>

namespace tailrace::cuda {
namespace {

Status unsupported(const TensorView& tensor, const std::string& why) {
  return {StatusCode::kUnsupported, "tensor " + printable(tensor.name) + ": " + why};
}

void pack_bf16_row(const std::byte* from, int64_t row, int64_t cols, std::byte* out) {
  const int r = static_cast<int>(row % kUnitRows);
  for (int64_t col = 0; col < cols; col += 2) {
    const int k = static_cast<int>(col % kUnitCols);
    const int at = ((r / 16 * 4 + k / 16) * 32 + unit_lane(r, k)) * 16 + unit_register(r, k) * 4;
    std::memcpy(out + col / kUnitCols * expert_unit_bytes(ExpertForm::kBf16) + at, from + col * 2, 4);
  }
}

// Blocks of 17 bytes: e, then 16 bytes of value i in the low and i + 16 in the high half.
bool pack_mxfp4_row(const std::byte* from, int64_t row, int64_t cols, std::byte* out) {
  const int r = static_cast<int>(row % kUnitRows);
  for (int64_t block = 0; block < cols / 32; ++block, from += 17) {
    std::byte* unit = out + block / 2 * expert_unit_bytes(ExpertForm::kMxfp4);
    const int first = static_cast<int>(block % 2) * 32;
    const int e = static_cast<int>(from[0]);
    if (e > kMxfp4MostScale) return false;
    unit[mxfp4_scale_at(r, first)] = static_cast<std::byte>(e == 0 ? 0 : e + kMxfp4ScaleBias);
    for (int i = 0; i < 32; i += 2) {
      const int k = first + i, reg = unit_register(r, k);
      std::byte* at = unit + (r / 16 * 32 + unit_lane(r, k)) * 16 + k / 16 * 4;
      uint32_t word;
      std::memcpy(&word, at, 4);
      for (int half = 0; half < 2; ++half) {
        const uint32_t byte = static_cast<uint32_t>(from[1 + (i + half) % 16]), code = i < 16 ? byte & 15 : byte >> 4;
        word |= (code & 7) << (mxfp4_magnitude_at(reg) + 16 * half) | code >> 3 << (mxfp4_sign_at(reg) + 16 * half);
      }
      std::memcpy(at, &word, 4);
    }
  }
  return true;
}

}  // namespace

Expected<size_t> packed_expert_bytes(const TensorView& tensor) {
  const FormatTraits traits = format_traits(tensor.format);
  if (tensor.shape.size() != 2) return fail(unsupported(tensor, "an expert is a matrix"));
  const auto form = expert_form_of(tensor.format);
  if (!form) {
    return fail(unsupported(tensor, std::string("the CUDA backend computes experts in MXFP4 and BF16, not in ") +
                                        traits.name + "; use --device cpu"));
  }
  const int64_t cols = tensor.shape[1];
  if (cols % (*form == ExpertForm::kBf16 ? 8 : 32) != 0) {
    return fail(unsupported(tensor, "rows of " + std::to_string(cols) + " " + traits.name + " values are not whole"));
  }
  return static_cast<size_t>(expert_matrix_bytes(*form, tensor.shape[0], cols));
}

Status pack_expert(const TensorView& tensor, std::byte* out) {
  const auto bytes = packed_expert_bytes(tensor);
  if (!bytes) return bytes.error();
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const size_t stored = stored_row_bytes(tensor.format, cols);
  if (stored * static_cast<size_t>(rows) != tensor.bytes) {
    return {StatusCode::kDataLoss, tensor.name + ": size does not match its shape"};
  }
  const ExpertForm form = *expert_form_of(tensor.format);
  std::memset(out, 0, *bytes);
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* from = tensor.data + static_cast<size_t>(row) * stored;
    std::byte* to = out + row / kUnitRows * expert_units(cols) * expert_unit_bytes(form);
    if (form == ExpertForm::kBf16) {
      pack_bf16_row(from, row, cols, to);
    } else if (!pack_mxfp4_row(from, row, cols, to)) {
      return unsupported(tensor,
                         "a block of row " + std::to_string(row) +
                             " has a scale above 2, which the CUDA backend does not take; use --device cpu");
    }
  }
  return {};
}

}  // namespace tailrace::cuda
