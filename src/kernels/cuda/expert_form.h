// How the matrices of a mixture's experts lie in a CUDA device's memory: as the tensor cores' operands, stored values
// untouched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "kernels/cuda/weight_form.h"
#include "weights/tensor.h"

namespace tailrace::cuda {

// A matrix is units of 64 rows x 64 columns, those of 64 rows one behind the other; zeros beyond its ends. A unit is,
// for each of four warps, the registers of operand A of mma.m16n8k16 (and of wgmma) in four steps of 16 columns: lane r
// % 8 * 4 + k % 8 / 2 of warp r / 16 holds value (r, k) in half k % 2 of register r % 16 / 8 + k % 16 / 8 * 2 of step k
// / 16.
enum class ExpertForm : uint8_t {
  kBf16,   // [warp][step][lane][register] pairs of bf16
  kMxfp4,  // [warp][lane][step] words (e2m1 codes), then 16 pairs of rows x 4 of scales (mxfp4_scale_at)
  kNvfp4,  // the same words, then 16 pairs of rows x 8 of scales (nvfp4_scale_at); times Weight::scale, which lies apart
  kFp8,    // [warp][half of the steps][lane][step] 8 bytes (fp8_byte_at); times Weight::scale, one per row
  kFp8Block,  // the same bytes, times a scale per 128 rows and 128 columns (repeated for each row in Weight::scale)
};
inline constexpr int kNumExpertForms = 5;

inline constexpr int kUnitRows = 64, kUnitCols = 64;
inline constexpr int kScaleBlockCols = 128;
inline constexpr int kFourBitUnitValues = kUnitRows * kUnitCols / 2;

TAILRACE_FORM_FN int expert_unit_bytes(ExpertForm form) {
  constexpr int kValues = kUnitRows * kUnitCols;
  return form == ExpertForm::kBf16    ? kValues * 2
         : form == ExpertForm::kMxfp4 ? kFourBitUnitValues + kValues / 32
         : form == ExpertForm::kNvfp4 ? kFourBitUnitValues + kValues / 16
                                      : kValues;
}
TAILRACE_FORM_FN int64_t expert_units(int64_t values) { return (values + kUnitCols - 1) / kUnitCols; }
// Bytes of one expert's matrix.
TAILRACE_FORM_FN int64_t expert_matrix_bytes(ExpertForm form, int64_t rows, int64_t cols) {
  return expert_units(rows) * expert_units(cols) * expert_unit_bytes(form);
}

TAILRACE_FORM_FN int unit_lane(int row, int col) { return row % 8 * 4 + col % 8 / 2; }
TAILRACE_FORM_FN int unit_register(int row, int col) { return row % 16 / 8 + col % 16 / 8 * 2; }

// A code of E2M1 is (sign, magnitude of 3 bits). Half k % 2 of a word holds the four registers' codes: signs of 0, 3,
// 2, 1 from bit 15 down, magnitudes of 3, 0, 1, 2 below: one or two shifts put one at bits 15 and 8-6, where it is
// bf16's value / 2^126.
TAILRACE_FORM_FN int e2m1_magnitude_at(int reg) { return reg == 3 ? 9 : 6 - 3 * reg; }
TAILRACE_FORM_FN int e2m1_sign_at(int reg) { return reg == 0 ? 15 : 11 + reg; }
// Byte of the scale of (row, col) within a unit. It is e + 126 (0 where e is 0), the exponent of 2^(e - 127) * 2^126 as
// bf16.
TAILRACE_FORM_FN int mxfp4_scale_at(int row, int col) {
  return kFourBitUnitValues + row / 16 * 32 + row % 8 * 4 + row % 16 / 8 + col / 32 * 2;
}
inline constexpr int kMxfp4ScaleBias = 126, kMxfp4MostScale = 128;  // e beyond (values of 12 and more) is refused

// NVFP4: byte of the scale of (row, col) within a unit. It holds e4m3's value 2^x (1 + m / 8) as (x + 9) * 8 + m, subnormals
// too, which bf16 takes by a shift and a sum: as the value * 2^110, so that sums are too small by kNvfp4Factor. The codes of
// a block whose scale is zero are zero; the sign of a negative one is in its codes.
TAILRACE_FORM_FN int nvfp4_scale_at(int row, int col) {
  return kFourBitUnitValues + row / 16 * 64 + row % 8 * 8 + row % 16 / 8 * 4 + col / 16;
}
inline constexpr int kNvfp4ScaleBias = 228 << 7;  // of the sum, bf16's bits
inline constexpr float kNvfp4Factor = 65536.0f;

// FP8: byte of (row, col) within a unit. A word holds two registers, one in its even, one in its odd bytes.
TAILRACE_FORM_FN int fp8_byte_at(int row, int col) {
  const int reg = unit_register(row, col), step = col / 16;
  return ((row / 16 * 2 + step / 2) * 32 + unit_lane(row, col)) * 16 + step % 2 * 8 + reg / 2 * 4 + col % 2 * 2 + (reg % 2 == 0 ? 1 : 0);
}

// The form of an expert's stored format, a scale per row if it has any; none: CUDA kernels do not compute on it.
constexpr std::optional<ExpertForm> expert_form_of(Format format) {
  if (format == Format::kBF16) return ExpertForm::kBf16;
  if (format == Format::kMXFP4) return ExpertForm::kMxfp4;
  if (format == Format::kNVFP4) return ExpertForm::kNvfp4;
  if (format == Format::kF8E4M3) return ExpertForm::kFp8;
  return std::nullopt;
}

// kUnsupported names the tensor: other formats, rows that are not whole 16 bytes.
Expected<size_t> packed_expert_bytes(const TensorView& tensor);
// Packs one expert's matrix [rows, cols] into host memory of packed_expert_bytes. kUnsupported: a scale beyond
// kMxfp4MostScale.
Status pack_expert(const TensorView& tensor, std::byte* out);

}  // namespace tailrace::cuda
