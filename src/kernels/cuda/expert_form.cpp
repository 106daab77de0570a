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

// A code of e2m1 into its lane's word.
void put_code(std::byte* unit, int r, int k, uint32_t code) {
  const int reg = unit_register(r, k), half = k % 2;
  std::byte* at = unit + (r / 16 * 32 + unit_lane(r, k)) * 16 + k / 16 * 4;
  uint32_t word;
  std::memcpy(&word, at, 4);
  word |= (code & 7) << (e2m1_magnitude_at(reg) + 16 * half) | code >> 3 << (e2m1_sign_at(reg) + 16 * half);
  std::memcpy(at, &word, 4);
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
    for (int i = 0; i < 32; ++i) {
      const uint32_t byte = static_cast<uint32_t>(from[1 + i % 16]);
      put_code(unit, r, first + i, i < 16 ? byte & 15 : byte >> 4);
    }
  }
  return true;
}

// Of e4m3's magnitude, which is not zero.
std::byte nvfp4_scale_byte(uint32_t magnitude) {
  int exponent = static_cast<int>(magnitude >> 3), mantissa = static_cast<int>(magnitude & 7);
  if (exponent == 0) {  // mantissa * 2^-9
    exponent = 1;
    while ((mantissa & 8) == 0) mantissa *= 2, --exponent;
  }
  return static_cast<std::byte>((exponent - 7 + 9) * 8 + (mantissa & 7));
}

// Blocks of 9 bytes: e4m3, then 16 codes, even ones in low nibbles.
void pack_nvfp4_row(const std::byte* from, int64_t row, int64_t cols, std::byte* out) {
  const int r = static_cast<int>(row % kUnitRows);
  for (int64_t block = 0; block < cols / 16; ++block, from += 9) {
    std::byte* unit = out + block / 4 * expert_unit_bytes(ExpertForm::kNvfp4);
    const int first = static_cast<int>(block % 4) * 16;
    const uint32_t scale = static_cast<uint32_t>(from[0]);
    if ((scale & 0x7f) == 0) continue;
    unit[nvfp4_scale_at(r, first)] = nvfp4_scale_byte(scale & 0x7f);
    for (int i = 0; i < 16; ++i) {
      const uint32_t byte = static_cast<uint32_t>(from[1 + i / 2]), code = i % 2 == 0 ? byte & 15 : byte >> 4;
      put_code(unit, r, first + i, code ^ (scale >> 7 << 3));
    }
  }
}

void pack_fp8_row(const std::byte* from, int64_t row, int64_t cols, std::byte* out) {
  const int r = static_cast<int>(row % kUnitRows);
  for (int64_t col = 0; col < cols; ++col) {
    out[col / kUnitCols * expert_unit_bytes(ExpertForm::kFp8) + fp8_byte_at(r, static_cast<int>(col % kUnitCols))] = from[col];
  }
}

// False: a value that the form does not hold.
bool pack_row(ExpertForm form, const std::byte* from, int64_t row, int64_t cols, std::byte* to) {
  switch (form) {
    case ExpertForm::kBf16: return pack_bf16_row(from, row, cols, to), true;
    case ExpertForm::kMxfp4: return pack_mxfp4_row(from, row, cols, to);
    case ExpertForm::kNvfp4: return pack_nvfp4_row(from, row, cols, to), true;
    case ExpertForm::kFp8:
    case ExpertForm::kFp8Block: return pack_fp8_row(from, row, cols, to), true;
  }
  return false;
}

}  // namespace

Expected<size_t> packed_expert_bytes(const TensorView& tensor) {
  const FormatTraits traits = format_traits(tensor.format);
  if (tensor.shape.size() != 2) return fail(unsupported(tensor, "an expert is a matrix"));
  const auto form = expert_form_of(tensor.format);
  if (!form) {
    return fail(unsupported(tensor, std::string("the CUDA backend computes experts in MXFP4, NVFP4, F8_E4M3 and BF16, not in ") +
                                        traits.name + "; use --device cpu"));
  }
  const int64_t cols = tensor.shape[1];
  if (cols % (*form == ExpertForm::kMxfp4 ? 32 : *form == ExpertForm::kNvfp4 ? 16 : 8) != 0) {
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
    if (!pack_row(form, from, row, cols, to)) {
      return unsupported(tensor,
                         "a block of row " + std::to_string(row) +
                             " has a scale above 2, which the CUDA backend does not take; use --device cpu");
    }
  }
  return {};
}

}  // namespace tailrace::cuda
