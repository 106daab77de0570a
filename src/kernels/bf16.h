// bfloat16 as the KV pool stores it: one rounding rule for every backend.
#pragma once

#include <bit>
#include <cstdint>

namespace tailrace {

// Round to nearest even; NaN stays NaN (quiet). Static: copies compiled for one instruction set must not be shared.
static inline uint16_t bf16_round(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace tailrace
