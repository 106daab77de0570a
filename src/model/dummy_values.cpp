#include "model/dummy_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "weights/dequantize.h"
#include "weights/mxfp4.h"
#include "weights/nvfp4.h"

namespace tailrace {
namespace {

// Blocks of 4-bit codes that are all alike, each behind its scale.
void fill_codes(std::byte scale, size_t block_bytes, std::mt19937_64& random, std::vector<std::byte>* bytes) {
  for (size_t at = 0; at < bytes->size(); at += block_bytes) {
    const uint64_t codes[2] = {random(), random()};
    (*bytes)[at] = scale;
    std::memcpy(bytes->data() + at + 1, codes, block_bytes - 1);
  }
}

}  // namespace

float dummy_deviation(int64_t cols) { return 1.0f / std::sqrt(static_cast<float>(cols)); }

std::vector<std::byte> dummy_values(const TensorView& tensor, float mean, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::byte> bytes(tensor.bytes);
  if (tensor.format == Format::kMXFP4 || tensor.format == Format::kNVFP4) {
    const bool mx = tensor.format == Format::kMXFP4;
    fill_codes(static_cast<std::byte>(mx ? mxfp4_scale_of(deviation) : nvfp4_scale_of(deviation)),
               static_cast<size_t>(format_traits(tensor.format).block_bytes), random, &bytes);
    return bytes;
  }
  for (size_t at = 0; at < bytes.size();) {
    const float value = normal(random);
    if (tensor.format == Format::kF8E4M3) {
      bytes[at++] = static_cast<std::byte>(float_to_e4m3(value));
    } else {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      bytes[at++] = static_cast<std::byte>(bits >> 16);
      bytes[at++] = static_cast<std::byte>(bits >> 24);
    }
  }
  return bytes;
}

}  // namespace tailrace
