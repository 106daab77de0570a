// Random weights in any stored format, finite and of a chosen size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/format.h"

namespace tailrace {

// Stored rows of random, finite values, about `spread` in size whatever the format. Seeded by the caller's generator.
inline std::string random_rows(Format format, int64_t rows, int64_t cols, float spread, std::mt19937_64& random) {
  // Where a block's half-precision scales lie, and what they multiply at most.
  struct Scale {
    int offset;
    float range;
  };
  const auto scales = [&]() -> std::vector<Scale> {
    switch (format) {
      case Format::kQ4_0: return {{0, 4}};
      case Format::kQ4_1: return {{0, 4}, {2, -2}};
      case Format::kQ5_0: return {{0, 8}};
      case Format::kQ5_1: return {{0, 8}, {2, -2}};
      case Format::kQ8_0: return {{0, 64}};
      case Format::kQ4_K: return {{0, 250}, {2, 64}};
      case Format::kQ5_K: return {{0, 500}, {2, 64}};
      case Format::kQ6_K: return {{208, 1000}};
      default: return {};
    }
  }();
  const FormatTraits traits = format_traits(format);
  std::normal_distribution<float> normal(0.0f, spread);
  std::string out(stored_row_bytes(format, cols) * rows, '\0');
  for (size_t at = 0; at < out.size(); at += traits.block_bytes) {
    char* block = out.data() + at;
    for (int i = 0; i < traits.block_bytes; ++i) block[i] = static_cast<char>(random());
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (format == Format::kF32) std::memcpy(block, &bits, 4);
    if (format == Format::kBF16) std::memcpy(block, reinterpret_cast<const char*>(&bits) + 2, 2);
    // A half in [2^e, 2^(e+1)) with random mantissa; the sign is the value's where the scale is centred on zero.
    const auto put_half = [&](int offset, float size, bool negative) {
      const int exponent = std::max(1, static_cast<int>(std::floor(std::log2(size))) + 15);
      const uint16_t half = static_cast<uint16_t>((negative ? 0x8000 : 0) | (exponent << 10) | (random() & 0x3ff));
      std::memcpy(block + offset, &half, 2);
    };
    if (format == Format::kF16) put_half(0, spread, value < 0);
    for (const Scale& scale : scales) {
      put_half(scale.offset, scale.range > 0 ? spread / scale.range : -spread * scale.range, scale.range < 0);
    }
  }
  return out;
}

}  // namespace tailrace
