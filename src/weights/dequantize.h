// The scalar reference of every stored format: what the bytes of a row mean as fp32. The oracle of all kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/format.h"
#include "base/status.h"

namespace tailrace {

// Writes cols values to `out` [cols] fp32. `row` holds stored_row_bytes(format, cols) bytes, unaligned. Equal bit for
// bit to PyPI gguf's dequantize. kInvalidArgument when cols is not a multiple of the format's block.
Status dequantize_row(Format format, const std::byte* row, int64_t cols, float* out);

// IEEE half and bfloat16 to fp32, exact; NaN payloads kept.
float half_to_float(uint16_t bits);
float bfloat16_to_float(uint16_t bits);
// OCP 8-bit float E4M3 to fp32, exact: largest 448, no infinity, NaN is 0x7f and 0xff.
float e4m3_to_float(uint8_t bits);
// To the nearest of those, ties to even; beyond 448, 448. A NaN stays one.
uint8_t float_to_e4m3(float value);

}  // namespace tailrace
