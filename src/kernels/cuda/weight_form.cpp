#include "kernels/cuda/weight_form.h"

#include <cmath>
#include <cstring>
#include <string>

namespace tailrace::cuda {
namespace {

uint16_t load_16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
uint8_t byte_at(const std::byte* p, int64_t i) { return static_cast<uint8_t>(p[i]); }

float from_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value;
  if (exponent == 31) {
    const uint32_t out = sign | 0x7f800000u | mantissa << 13;
    std::memcpy(&value, &out, 4);
    return value;
  }
  value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f : 0.0f;
  if (exponent != 0) {
    const uint32_t out = (exponent + 112) << 23 | mantissa << 13;
    std::memcpy(&value, &out, 4);
  }
  return sign != 0 ? -value : value;
}

// To the nearest half, ties to even; beyond the range, the largest (a scale is no infinity).
uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7bffu;
  if (bits < 0x38800000u) {  // subnormal
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    const float shifted = magnitude * 0x1p24f;
    auto whole = static_cast<uint32_t>(shifted);
    const float rest = shifted - static_cast<float>(whole);
    whole += rest > 0.5f || (rest == 0.5f && (whole & 1));
    return sign | static_cast<uint16_t>(whole);
  }
  bits += 0xfffu + (bits >> 13 & 1);
  return sign | static_cast<uint16_t>((bits >> 13) - (112u << 10));
}

// 32 values of a row: integers, and w = d[half of the block] q + m.
struct Block {
  int8_t q[32];
  float d[2] = {0, 0};
  float m = 0;
};

void set_d(Block* b, float d) { b->d[0] = b->d[1] = d; }

// The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K (twelve bytes hold eight of each).
void scale_and_min(const std::byte* packed, int j, int* scale, int* min) {
  const auto s = [&](int i) { return int{byte_at(packed, i)}; };
  if (j < 4) {
    *scale = s(j) & 63, *min = s(j + 4) & 63;
  } else {
    *scale = (s(j + 4) & 15) | s(j - 4) >> 6 << 4;
    *min = s(j + 4) >> 4 | s(j) >> 6 << 4;
  }
}

void unpack_small(Format format, const std::byte* p, Block* b) {  // GGUF's blocks of 32
  set_d(b, from_half(load_16(p)));
  if (format == Format::kQ8_0) {
    std::memcpy(b->q, p + 2, 32);
    return;
  }
  const bool has_min = format == Format::kQ4_1 || format == Format::kQ5_1;
  const bool five = format == Format::kQ5_0 || format == Format::kQ5_1;
  if (has_min) b->m = from_half(load_16(p + 2));
  const std::byte* high = p + (has_min ? 4 : 2);
  const std::byte* low = high + (five ? 4 : 0);
  for (int i = 0; i < 32; ++i) {
    int q = i < 16 ? byte_at(low, i) & 15 : byte_at(low, i - 16) >> 4;
    if (five) q |= (byte_at(high, i / 8) >> i % 8 & 1) << 4;
    if (format == Format::kQ5_0) q -= 16;
    b->q[i] = static_cast<int8_t>(q);
  }
  if (format == Format::kQ4_0) b->m = -8.0f * b->d[0];
}

void unpack_k(Format format, const std::byte* p, int j, Block* b) {  // sub-block j of 8 in a super-block of 256
  if (format == Format::kQ6_K) {
    const std::byte *low = p + j / 4 * 64, *high = p + 128 + j / 4 * 32, *scales = p + 192;
    const float d = from_half(load_16(p + 208));
    const int quarter = j % 4;
    for (int i = 0; i < 32; ++i) {
      const int nibble = quarter < 2 ? byte_at(low, quarter * 32 + i) & 15 : byte_at(low, (quarter - 2) * 32 + i) >> 4;
      b->q[i] = static_cast<int8_t>((nibble | (byte_at(high, i) >> 2 * quarter & 3) << 4) - 32);
    }
    for (int half = 0; half < 2; ++half) {
      b->d[half] = d * static_cast<float>(static_cast<int8_t>(byte_at(scales, j * 2 + half)));
    }
    return;
  }
  int scale, min;
  scale_and_min(p + 4, j, &scale, &min);
  set_d(b, from_half(load_16(p)) * static_cast<float>(scale));
  b->m = -from_half(load_16(p + 2)) * static_cast<float>(min);
  const bool five = format == Format::kQ5_K;
  const std::byte* low = p + (five ? 48 : 16) + j / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    int q = j % 2 == 0 ? byte_at(low, i) & 15 : byte_at(low, i) >> 4;
    if (five) q |= (byte_at(p, 16 + i) >> j & 1) << 4;
    b->q[i] = static_cast<int8_t>(q);
  }
}

void unpack(Format format, const std::byte* row, int64_t block, Block* b) {
  const FormatTraits traits = format_traits(format);
  if (traits.block_elems == 32) {
    unpack_small(format, row + block * traits.block_bytes, b);
  } else {
    unpack_k(format, row + block / 8 * traits.block_bytes, static_cast<int>(block % 8), b);
  }
}

void pack_block(WeightForm form, const Block& b, std::byte* values, std::byte* scales) {
  if (form == WeightForm::kInt8) {
    std::memcpy(values, b.q, 32);
    const uint16_t s[4] = {to_half(b.d[0]), to_half(b.d[1]), to_half(b.m), 0};
    std::memcpy(scales, s, 8);
    return;
  }
  uint32_t words[4] = {};
  for (int i = 0; i < 32; ++i) words[i / 8] |= static_cast<uint32_t>(b.q[i]) << int4_position(i % 8);
  std::memcpy(values, words, 16);
  const uint16_t s[2] = {to_half(b.d[0]), to_half(b.m)};
  std::memcpy(scales, s, 4);
}

// e4m3 without NaN, which the loader refuses.
float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -value : value;
}

// Blocks of 9 bytes: e4m3, then 16 codes, even ones in low nibbles. Two make a block of the form.
void pack_nvfp4_row(const std::byte* from, int64_t cols, std::byte* values, std::byte* scales) {
  for (int64_t block = 0; block < cols / 32; ++block, from += 18) {
    uint32_t words[4] = {};
    uint16_t s[2];
    for (int half = 0; half < 2; ++half) {
      const std::byte* p = from + half * 9;
      s[half] = to_half(from_e4m3(byte_at(p, 0)) * kNvfp4Scale);
      for (int i = 0; i < 16; ++i) {
        const uint32_t byte = byte_at(p, 1 + i / 2), code = i % 2 == 0 ? byte & 15 : byte >> 4;
        words[half * 2 + i / 8] |= code << int4_position(i % 8);
      }
    }
    std::memcpy(values + block * 16, words, 16);
    std::memcpy(scales + block * 4, s, 4);
  }
}

}  // namespace

Expected<WeightForm> weight_form(const TensorView& tensor) {
  const auto refuse = [&](const std::string& why) {
    return fail(StatusCode::kUnsupported, "tensor " + printable(tensor.name) + ": " + why);
  };
  const FormatTraits traits = format_traits(tensor.format);
  if (tensor.shape.size() != 2) return refuse("only matrices are packed");
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  if (traits.block_elems == 1 && cols * traits.block_bytes % 16 != 0) {
    return refuse("the CUDA kernels need rows of whole 16 bytes, not " + std::to_string(cols) + " " + traits.name + " values");
  }
  if (tensor.format == Format::kNVFP4 && cols % 32 != 0) return refuse("rows of NVFP4 are not whole 16 bytes");
  if (cols % traits.block_elems != 0) return refuse(std::string("rows are not whole blocks of ") + traits.name);
  if (tensor.rope_interleaved && (tensor.head_dim <= 0 || tensor.head_dim % 2 != 0 || rows % tensor.head_dim != 0)) {
    return refuse("rows are not whole heads of an even size");
  }
  if (const auto form = form_of(tensor.format)) return *form;
  return refuse(std::string("the CUDA backend does not compute on ") + traits.name +
                " matrices; use --device cpu, or a BF16 or quantised checkpoint");
}

Expected<size_t> packed_bytes(const TensorView& tensor) {
  const auto form = weight_form(tensor);
  if (!form) return fail(form.error());
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  return static_cast<size_t>(scales_offset(*form, rows, cols) + rows * scale_row_bytes(*form, cols));
}

Status pack(const TensorView& tensor, std::byte* out) {
  const auto form = weight_form(tensor);
  if (!form) return form.error();
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const size_t stored = stored_row_bytes(tensor.format, cols);
  if (stored * static_cast<size_t>(rows) != tensor.bytes) {
    return {StatusCode::kDataLoss, tensor.name + ": size does not match its shape"};
  }
  const int64_t value_bytes = *form == WeightForm::kInt4 ? 16 : 32, scale_bytes = *form == WeightForm::kInt4 ? 4 : 8;
  std::byte* scales = out + scales_offset(*form, rows, cols);
  std::memset(out, 0, static_cast<size_t>(scales - out + rows * scale_row_bytes(*form, cols)));
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* from = tensor.data + static_cast<size_t>(row) * stored;
    int64_t to = row;
    if (tensor.rope_interleaved) {  // row 2i + s of a head was row s * half + i
      const int64_t in_head = row % tensor.head_dim;
      to = row - in_head + in_head % 2 * (tensor.head_dim / 2) + in_head / 2;
    }
    std::byte* values = out + to * value_row_bytes(*form, cols);
    if (format_traits(tensor.format).block_elems == 1) {
      std::memcpy(values, from, stored);
      continue;
    }
    std::byte* scale = scales + to * scale_row_bytes(*form, cols);
    if (*form == WeightForm::kNvfp4) {
      pack_nvfp4_row(from, cols, values, scale);
      continue;
    }
    for (int64_t block = 0; block < cols / 32; ++block) {
      Block b;
      unpack(tensor.format, from, block, &b);
      pack_block(*form, b, values + block * value_bytes, scale + block * scale_bytes);
    }
  }
  return {};
}

}  // namespace tailrace::cuda
