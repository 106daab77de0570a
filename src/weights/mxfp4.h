// Hugging Face's spelling of MXFP4, two tensors of bytes (values and scales), as the blocks of Format::kMXFP4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "weights/tensor.h"

namespace tailrace {

// One row of `cols` values (a multiple of 32): `blocks` [cols / 32][16], the low nibble of a byte being the even value;
// `scales` [cols / 32] E8M0. Writes stored_row_bytes(Format::kMXFP4, cols) bytes; no bit is lost.
void join_mxfp4_row(const std::byte* blocks, const std::byte* scales, int64_t cols, std::byte* out);

// The deviation of E2M1 codes that are all equally likely: root of the mean square of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
inline constexpr float kE2M1Deviation = 2.93f;
// The E8M0 byte with which codes that are all equally likely have about this deviation (of size 2^-127 to 2^127).
uint8_t mxfp4_scale_of(float deviation);

// kDataLoss if one of the E8M0 scales of a row of kMXFP4 is a NaN (255): it names `tensor` and the block.
Status check_mxfp4(const TensorView& tensor, const std::byte* rows, size_t bytes);

}  // namespace tailrace
