// The scalar reference of every stored format: what the bytes of a row mean as fp32. The oracle of all kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/format.h"
#include "base/status.h"

namespace tailrace {

// Writes cols values to `out` [cols] fp32. `row` holds stored_row_bytes(format, cols) bytes, unaligned. Equal bit for
// bit to PyPI gguf's dequantize, but for MXFP4's scale 255, which is a NaN here. kInvalidArgument when cols is not a
// multiple of the format's block.
Status dequantize_row(Format format, const std::byte* row, int64_t cols, float* out);

// IEEE half and bfloat16 to fp32, exact; NaN payloads kept.
float half_to_float(uint16_t bits);
float bfloat16_to_float(uint16_t bits);
// OCP 8-bit float E4M3 to fp32, exact: largest 448, no infinity, NaN is 0x7f and 0xff.
float e4m3_to_float(uint8_t bits);
// To the nearest of those, ties to even; beyond 448, 448. A NaN stays one.
uint8_t float_to_e4m3(float value);
// OCP scale E8M0, exact: 2^(bits - 127); 255 is a NaN.
float e8m0_to_float(uint8_t bits);
// OCP 4-bit float E2M1 times two: 0, 1, 2, 3, 4, 6, 8, 12, then the same negated (8 is 0).
inline constexpr int kE2M1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace tailrace
