#include "weights/dequantize.h"

#include <bit>
#include <cstring>
#include <string>

// Products and sums are rounded one by one, as numpy does: this file is compiled without contraction to fused
// multiply-adds (see CMakeLists.txt).

namespace tailrace {
namespace {

uint16_t load_u16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

uint32_t load_u32(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

float load_half(const std::byte* p) { return half_to_float(load_u16(p)); }
int low_nibble(std::byte b) { return static_cast<int>(b) & 15; }
int high_nibble(std::byte b) { return static_cast<int>(b) >> 4; }

// Blocks of 32: low nibbles are elements 0-15, high nibbles 16-31.
void block_q4_0(const std::byte* p, float* out) {
  const float d = load_half(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low_nibble(p[2 + i]) - 8);
    out[16 + i] = d * static_cast<float>(high_nibble(p[2 + i]) - 8);
  }
}

void block_q4_1(const std::byte* p, float* out) {
  const float d = load_half(p), m = load_half(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low_nibble(p[4 + i])) + m;
    out[16 + i] = d * static_cast<float>(high_nibble(p[4 + i])) + m;
  }
}

// The fifth bit of element i is bit i of a 32-bit mask.
int fifth_bit(uint32_t mask, int i) { return static_cast<int>((mask >> i) & 1) << 4; }

void block_q5_0(const std::byte* p, float* out) {
  const float d = load_half(p);
  const uint32_t mask = load_u32(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((low_nibble(p[6 + i]) | fifth_bit(mask, i)) - 16);
    out[16 + i] = d * static_cast<float>((high_nibble(p[6 + i]) | fifth_bit(mask, 16 + i)) - 16);
  }
}

void block_q5_1(const std::byte* p, float* out) {
  const float d = load_half(p), m = load_half(p + 2);
  const uint32_t mask = load_u32(p + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low_nibble(p[8 + i]) | fifth_bit(mask, i)) + m;
    out[16 + i] = d * static_cast<float>(high_nibble(p[8 + i]) | fifth_bit(mask, 16 + i)) + m;
  }
}

void block_q8_0(const std::byte* p, float* out) {
  const float d = load_half(p);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
}

// Q4_K and Q5_K: 8 sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum packed into 12 bytes: the low six bits
// of 0-3 lie in bytes 0-3 (scales) and 4-7 (minima); those of 4-7 are split between bytes 8-11 and the top bits of 0-7.
void sub_block_scale_min(const std::byte* packed, int j, int* scale, int* minimum) {
  auto at = [&](int i) { return static_cast<int>(packed[i]); };
  if (j < 4) {
    *scale = at(j) & 63;
    *minimum = at(4 + j) & 63;
  } else {
    *scale = (at(8 + j - 4) & 15) | ((at(j - 4) >> 6) << 4);
    *minimum = (at(8 + j - 4) >> 4) | ((at(j) >> 6) << 4);
  }
}

// `high` is null for Q4_K; for Q5_K bit j of high[i] is the fifth bit of element i of sub-block j.
void sub_blocks(float d, float dmin, const std::byte* scales, const std::byte* high, const std::byte* quants,
                float* out) {
  for (int j = 0; j < 8; ++j) {
    int scale, minimum;
    sub_block_scale_min(scales, j, &scale, &minimum);
    const float sub_d = d * static_cast<float>(scale);
    const float sub_m = dmin * static_cast<float>(minimum);
    const std::byte* q = quants + (j / 2) * 32;  // even sub-blocks in the low nibbles, odd ones in the high
    for (int i = 0; i < 32; ++i) {
      int value = j % 2 == 0 ? low_nibble(q[i]) : high_nibble(q[i]);
      if (high) value |= ((static_cast<int>(high[i]) >> j) & 1) << 4;
      out[j * 32 + i] = sub_d * static_cast<float>(value) - sub_m;
    }
  }
}

void block_q4_k(const std::byte* p, float* out) {
  sub_blocks(load_half(p), load_half(p + 2), p + 4, nullptr, p + 16, out);
}

void block_q5_k(const std::byte* p, float* out) {
  sub_blocks(load_half(p), load_half(p + 2), p + 4, p + 16, p + 48, out);
}

// 128 bytes of low nibbles, 64 bytes of top bit pairs, 16 signed scales (one for 16 elements), the scale of scales.
void block_q6_k(const std::byte* p, float* out) {
  const float d = load_half(p + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, within = i % 128;                   // halves of 128 elements use 64 + 32 bytes each
    const std::byte low = p[half * 64 + within % 64];
    const int nibble = within < 64 ? low_nibble(low) : high_nibble(low);
    const int pair = (static_cast<int>(p[128 + half * 32 + within % 32]) >> (2 * (within / 32))) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(p[192 + i / 16]));
    out[i] = scale * static_cast<float>((nibble | (pair << 4)) - 32);
  }
}

void block_mxfp4(const std::byte* p, float* out) {
  const float d = e8m0_to_float(static_cast<uint8_t>(*p)) * 0.5f;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kE2M1Twice[low_nibble(p[1 + i])]);
    out[16 + i] = d * static_cast<float>(kE2M1Twice[high_nibble(p[1 + i])]);
  }
}

void block_nvfp4(const std::byte* p, float* out) {
  const float d = e4m3_to_float(static_cast<uint8_t>(*p)) * 0.5f;
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = d * static_cast<float>(kE2M1Twice[low_nibble(p[1 + i])]);
    out[2 * i + 1] = d * static_cast<float>(kE2M1Twice[high_nibble(p[1 + i])]);
  }
}

void block_f32(const std::byte* p, float* out) { std::memcpy(out, p, 4); }
void block_f16(const std::byte* p, float* out) { *out = load_half(p); }
void block_bf16(const std::byte* p, float* out) { *out = bfloat16_to_float(load_u16(p)); }
void block_f8_e4m3(const std::byte* p, float* out) { *out = e4m3_to_float(static_cast<uint8_t>(*p)); }

using BlockFn = void (*)(const std::byte*, float*);

BlockFn block_function(Format format) {
  switch (format) {
    case Format::kF32: return block_f32;
    case Format::kF16: return block_f16;
    case Format::kBF16: return block_bf16;
    case Format::kQ4_0: return block_q4_0;
    case Format::kQ4_1: return block_q4_1;
    case Format::kQ5_0: return block_q5_0;
    case Format::kQ5_1: return block_q5_1;
    case Format::kQ8_0: return block_q8_0;
    case Format::kQ4_K: return block_q4_k;
    case Format::kQ5_K: return block_q5_k;
    case Format::kQ6_K: return block_q6_k;
    case Format::kF8E4M3: return block_f8_e4m3;
    case Format::kMXFP4: return block_mxfp4;
    case Format::kNVFP4: return block_nvfp4;
    case Format::kU8: break;
  }
  return nullptr;
}

}  // namespace

float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24, exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-9
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f) | sign);
  }
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : static_cast<uint32_t>(bits) << 23);
}

uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, which 2^14's last place rounds to
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(rounded) & 15);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
  return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

Status dequantize_row(Format format, const std::byte* row, int64_t cols, float* out) {
  const FormatTraits traits = format_traits(format);
  const BlockFn block = block_function(format);
  if (!block) {
    return Status(StatusCode::kUnsupported, std::string("the format ") + traits.name + " has no values of its own");
  }
  if (cols < 0 || cols % traits.block_elems != 0) {
    return invalid("a row of " + std::to_string(cols) + " elements is not a whole number of " + traits.name +
                   " blocks of " + std::to_string(traits.block_elems));
  }
  for (int64_t i = 0; i < cols; i += traits.block_elems, row += traits.block_bytes) block(row, out + i);
  return Status();
}

}  // namespace tailrace
