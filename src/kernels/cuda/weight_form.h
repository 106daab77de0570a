// How matrices lie in a CUDA device's memory: the forms that kernels compute on, and packing checkpoint tensors into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "weights/tensor.h"

#ifdef __CUDACC__
#define TAILRACE_FORM_FN __host__ __device__ constexpr
#else
#define TAILRACE_FORM_FN constexpr
#endif

namespace tailrace::cuda {

// `values` are row-major [rows][cols]; the block forms have `scales` too, whose rows are padded to 16 bytes.
enum class WeightForm : uint8_t {
  kBf16,  // 2 bytes a value
  kF16,   // 2 bytes a value
  kFp8,   // e4m3, 1 byte a value; times Weight::scale, which lies apart
  kInt4,  // 4 bits a value in words of 8, in the order of int4_position; scales: halves (d, m) per 32 values, w = d q + m
  kNvfp4, // e2m1 codes in words of 8, ordered as kInt4's; scales: halves (e4m3 of values 0-15, of 16-31) * kNvfp4Scale per
          // 32; times Weight::scale, which lies apart
  kInt8,  // 1 signed byte a value; scales: halves (d of values 0-15, d of 16-31, m, 0) per 32, w = d q + m
};

// Codes become halves of their value / 2^14, scales are stored times this: products are exact, and normal where they matter.
inline constexpr float kNvfp4Scale = 128.0f;
TAILRACE_FORM_FN bool four_bits(WeightForm form) { return form == WeightForm::kInt4 || form == WeightForm::kNvfp4; }

// Bit position of value i (0..7) in a word of kInt4: pairs (2j, 2j + 1) come out of one shift and mask.
TAILRACE_FORM_FN int int4_position(int i) { return 4 * (i / 2 + 4 * (i % 2)); }

TAILRACE_FORM_FN int64_t value_row_bytes(WeightForm form, int64_t cols) {
  return form == WeightForm::kBf16 || form == WeightForm::kF16 ? cols * 2 : four_bits(form) ? cols / 2 : cols;
}
TAILRACE_FORM_FN int64_t scale_row_bytes(WeightForm form, int64_t cols) {
  const int64_t bytes = four_bits(form) ? cols / 32 * 4 : form == WeightForm::kInt8 ? cols / 32 * 8 : 0;
  return (bytes + 15) / 16 * 16;
}
// Byte offset of the scales behind the values of a matrix.
TAILRACE_FORM_FN int64_t scales_offset(WeightForm form, int64_t rows, int64_t cols) {
  return (rows * value_row_bytes(form, cols) + 255) / 256 * 256;
}

// The form of a stored format; none: CUDA kernels do not compute on it.
constexpr std::optional<WeightForm> form_of(Format format) {
  switch (format) {
    case Format::kBF16: return WeightForm::kBf16;
    case Format::kF16: return WeightForm::kF16;
    case Format::kF8E4M3: return WeightForm::kFp8;
    case Format::kQ4_0: case Format::kQ4_1: case Format::kQ4_K: return WeightForm::kInt4;
    case Format::kQ5_0: case Format::kQ5_1: case Format::kQ5_K: case Format::kQ6_K: case Format::kQ8_0: return WeightForm::kInt8;
    case Format::kNVFP4: return WeightForm::kNvfp4;
    case Format::kF32: case Format::kMXFP4: case Format::kU8: break;
  }
  return std::nullopt;
}

// BF16, F16 and F8_E4M3 stay as they are, and so do NVFP4's codes. The integer forms hold the stored integers, with one (d, m), or two d and an m, per 32
// values; products of two stored scales (the K formats) are rounded to halves.
// kUnsupported names the tensor: F32 matrices, rows that are not whole 16 bytes or not whole blocks of the format.
Expected<WeightForm> weight_form(const TensorView& tensor);
// Bytes of the packed tensor [rows, cols].
Expected<size_t> packed_bytes(const TensorView& tensor);
// Whether the packed tensor begins with the stored one, and zeros are the rest.
inline bool lies_as_stored(const TensorView& tensor) {
  return format_traits(tensor.format).block_elems == 1 && !tensor.rope_interleaved;
}
// Packs into host memory of packed_bytes, all of which is written: what pads rows and scales is zeros. Rows ordered for pairwise RoPE go back to NeoX order.
Status pack(const TensorView& tensor, std::byte* out);

}  // namespace tailrace::cuda
