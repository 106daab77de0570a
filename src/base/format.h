// The stored formats of weights: how many elements a block holds and how many bytes it takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tailrace {

enum class Format : uint8_t {
  kF32, kF16, kBF16,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0,  // GGUF, blocks of 32
  kQ4_K, kQ5_K, kQ6_K,                // GGUF, super-blocks of 256
  kF8E4M3,                            // 1-4-3 bits, no infinity, NaN is 0x7f and 0xff; scaled by a tensor of its own
  kMXFP4,                             // blocks of 32: 2^(byte - 127), then 4-bit floats e2m1; low nibbles come first
  kNVFP4,                             // blocks of 16: e4m3, then e2m1, even values in low nibbles; scaled as kF8E4M3
  kU8,                                // bytes whose meaning another tensor gives; no values of their own
};
inline constexpr int kNumFormats = 14;  // that hold values

struct FormatTraits {
  const char* name;
  int block_elems;  // along a row (K)
  int block_bytes;
};

constexpr FormatTraits format_traits(Format format) {
  switch (format) {
    case Format::kF32: return {"F32", 1, 4};
    case Format::kF16: return {"F16", 1, 2};
    case Format::kBF16: return {"BF16", 1, 2};
    case Format::kQ4_0: return {"Q4_0", 32, 18};
    case Format::kQ4_1: return {"Q4_1", 32, 20};
    case Format::kQ5_0: return {"Q5_0", 32, 22};
    case Format::kQ5_1: return {"Q5_1", 32, 24};
    case Format::kQ8_0: return {"Q8_0", 32, 34};
    case Format::kQ4_K: return {"Q4_K", 256, 144};
    case Format::kQ5_K: return {"Q5_K", 256, 176};
    case Format::kQ6_K: return {"Q6_K", 256, 210};
    case Format::kF8E4M3: return {"F8_E4M3", 1, 1};
    case Format::kMXFP4: return {"MXFP4", 32, 17};
    case Format::kNVFP4: return {"NVFP4", 16, 9};
    case Format::kU8: return {"U8", 1, 1};
  }
  return {"?", 1, 0};
}

// Bytes of one stored row of `cols` elements; cols must be a multiple of block_elems.
constexpr size_t stored_row_bytes(Format format, int64_t cols) {
  return static_cast<size_t>(cols / format_traits(format).block_elems) * format_traits(format).block_bytes;
}

}  // namespace tailrace
