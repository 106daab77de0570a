#include "weights/nvfp4.h"

#include <cstring>
#include <string>

#include "weights/dequantize.h"
#include "weights/mxfp4.h"

namespace tailrace {
namespace {

constexpr size_t kBlockBytes = format_traits(Format::kNVFP4).block_bytes;

}  // namespace

void join_nvfp4_row(const std::byte* nibbles, const std::byte* scales, int64_t cols, std::byte* out) {
  for (int64_t block = 0; block < cols / 16; ++block, nibbles += 8, out += kBlockBytes) {
    out[0] = scales[block];
    std::memcpy(out + 1, nibbles, 8);
  }
}

uint8_t nvfp4_scale_of(float deviation) { return float_to_e4m3(deviation / kE2M1Deviation); }

Status check_nvfp4(const TensorView& tensor, const std::byte* rows, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    if ((rows[at] & std::byte{0x7f}) != std::byte{0x7f}) continue;
    return {StatusCode::kDataLoss,
            "tensor " + printable(tensor.name) + ": the scale of a block of 16 values, " +
                std::to_string(at / kBlockBytes) + " in its matrix, is not finite"};
  }
  return {};
}

}  // namespace tailrace
