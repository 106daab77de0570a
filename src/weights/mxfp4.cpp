#include "weights/mxfp4.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tailrace {

void join_mxfp4_row(const std::byte* blocks, const std::byte* scales, int64_t cols, std::byte* out) {
  constexpr std::byte kLow{15};
  for (int64_t block = 0; block < cols / 32; ++block, blocks += 16, out += 17) {
    out[0] = scales[block];
    for (int i = 0; i < 8; ++i) {  // values 2i, 2i + 1 in the low half, 16 + 2i, 17 + 2i in the high one
      const std::byte low = blocks[i], high = blocks[8 + i];
      out[1 + 2 * i] = (low & kLow) | (high & kLow) << 4;
      out[2 + 2 * i] = low >> 4 | (high & ~kLow);
    }
  }
}

uint8_t mxfp4_scale_of(float deviation) {
  return static_cast<uint8_t>(std::clamp(127 + std::lround(std::log2(deviation / kE2M1Deviation)), 1L, 254L));
}

Status check_mxfp4(const TensorView& tensor, const std::byte* rows, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 17) {
    if (rows[at] != std::byte{255}) continue;
    return {StatusCode::kDataLoss,
            "tensor " + printable(tensor.name) + ": the scale of a block of 32 values, " + std::to_string(at / 17) +
                " in its matrix, is not finite"};
  }
  return {};
}

}  // namespace tailrace
