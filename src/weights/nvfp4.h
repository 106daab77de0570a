// The published spellings of NVFP4 (nibbles, scales of 16 values, one scale of the matrix, each a tensor), as the
// blocks of Format::kNVFP4; the scale of the matrix stays apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "weights/tensor.h"

namespace tailrace {

// One row of `cols` values (a multiple of 16): `nibbles` [cols / 2], the low one of a byte being the even value;
// `scales` [cols / 16] F8_E4M3. Writes stored_row_bytes(Format::kNVFP4, cols) bytes; no bit is lost.
void join_nvfp4_row(const std::byte* nibbles, const std::byte* scales, int64_t cols, std::byte* out);

// The F8_E4M3 scale with which codes that are all equally likely have about this deviation.
uint8_t nvfp4_scale_of(float deviation);

// kDataLoss if one of the scales of rows of kNVFP4 is a NaN: it names `tensor` and the block.
Status check_nvfp4(const TensorView& tensor, const std::byte* rows, size_t bytes);

}  // namespace tailrace
