#include "weights/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "weights/mxfp4.h"
#include "weights/nvfp4.h"

namespace tailrace {
namespace {

// Golden files hold `blocks` stored blocks, then their elements as fp32 (tools/make_quant_goldens.py).
void expect_equals_golden(Format format) {
  const FormatTraits traits = format_traits(format);
  std::ifstream file(std::string(TAILRACE_SOURCE_DIR) + "/tests/goldens/quants/" + traits.name + ".bin",
                     std::ios::binary);
  ASSERT_TRUE(file) << traits.name;
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t per_block = static_cast<size_t>(traits.block_bytes) + traits.block_elems * sizeof(float);
  const size_t blocks = bytes.size() / per_block;
  ASSERT_GE(blocks, 8u);
  ASSERT_EQ(blocks * per_block, bytes.size());

  std::vector<float> expected(blocks * traits.block_elems), got(expected.size());
  std::memcpy(expected.data(), bytes.data() + blocks * traits.block_bytes, expected.size() * sizeof(float));
  ASSERT_TRUE(dequantize_row(format, reinterpret_cast<const std::byte*>(bytes.data()),
                             static_cast<int64_t>(got.size()), got.data()).ok());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(float)), 0)
        << traits.name << " element " << i << ": " << got[i] << " instead of " << expected[i];
  }
}

constexpr Format kGgufFormats[] = {Format::kF16,  Format::kBF16, Format::kQ4_0, Format::kQ4_1, Format::kQ5_0,
                                   Format::kQ5_1, Format::kQ8_0, Format::kQ4_K, Format::kQ5_K, Format::kQ6_K,
                                   Format::kMXFP4};

TEST(Dequantize, equals_gguf_bit_for_bit) {
  for (Format format : kGgufFormats) expect_equals_golden(format);
}

TEST(Dequantize, f32_is_a_copy) {
  const float in[3] = {1.5f, -0.0f, 3e-41f};
  float out[3];
  ASSERT_TRUE(dequantize_row(Format::kF32, reinterpret_cast<const std::byte*>(in), 3, out).ok());
  EXPECT_EQ(std::memcmp(in, out, sizeof in), 0);
}

TEST(Dequantize, rejects_part_of_a_block) {
  std::byte row[18] = {};
  float out[32];
  const Status status = dequantize_row(Format::kQ4_0, row, 31, out);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Q4_0"), std::string::npos);
}

// By the definition: (-1)^s 2^(e - 7) (1 + m / 8), subnormal (-1)^s 2^-6 m / 8, all ones a NaN.
TEST(Dequantize, e4m3_has_all_values) {
  for (int bits = 0; bits < 256; ++bits) {
    const float got = e4m3_to_float(static_cast<uint8_t>(bits));
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    EXPECT_EQ(std::signbit(got), bits >= 128) << bits;
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(got));
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
      EXPECT_EQ(std::abs(got), magnitude) << bits;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
}

TEST(Dequantize, float_to_e4m3_rounds_to_nearest_even) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    const float value = e4m3_to_float(byte);
    EXPECT_EQ(float_to_e4m3(value), byte) << bits;
    if ((bits & 127) >= 126) continue;
    const float next = e4m3_to_float(static_cast<uint8_t>(bits + 1)), middle = (value + next) / 2;
    EXPECT_EQ(float_to_e4m3(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, value)), bits) << bits;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, next)), bits + 1) << bits;
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-HUGE_VALF), 0xfe);
}

TEST(Dequantize, e8m0_is_a_power_of_two_or_nan) {
  for (int bits = 0; bits < 255; ++bits) {
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(bits)), std::ldexp(1.0, bits - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

// The file: 16 rows of [blocks | scales] of 64 values, then what they mean by the OCP definition (fp32).
TEST(Dequantize, mxfp4_of_two_tensors) {
  std::ifstream file(TAILRACE_SOURCE_DIR "/tests/goldens/quants/MXFP4_pair.bin", std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  constexpr size_t kRows = 16, kCols = 64, kRowBytes = 34;
  ASSERT_EQ(bytes.size(), kRows * (kRowBytes + kCols * sizeof(float)));
  for (size_t row = 0; row < kRows; ++row) {
    const auto* stored = reinterpret_cast<const std::byte*>(bytes.data()) + row * kRowBytes;
    std::byte joined[kRowBytes];
    float expected[kCols], got[kCols];
    std::memcpy(expected, bytes.data() + kRows * kRowBytes + row * sizeof expected, sizeof expected);
    join_mxfp4_row(stored, stored + 32, kCols, joined);
    ASSERT_TRUE(dequantize_row(Format::kMXFP4, joined, kCols, got).ok());
    for (size_t i = 0; i < kCols; ++i) ASSERT_EQ(got[i], expected[i]) << row << " " << i;
  }
}

// Every code by every scale: the pair of tensors, joined, is E2M1 by E4M3.
TEST(Dequantize, nvfp4_of_two_tensors) {
  constexpr double kE2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::byte nibbles[8], joined[18], scales[2] = {};
  for (int i = 0; i < 8; ++i) nibbles[i] = static_cast<std::byte>(2 * i | (2 * i + 1) << 4);
  for (int bits = 0; bits < 256; ++bits) {
    scales[1] = static_cast<std::byte>(bits);
    std::byte both[16];
    std::memcpy(both, nibbles, 8);
    std::memcpy(both + 8, nibbles, 8);
    join_nvfp4_row(both, scales, 32, joined);
    float got[32];
    ASSERT_TRUE(dequantize_row(Format::kNVFP4, joined, 32, got).ok());
    TensorView tensor;
    tensor.name = "experts";
    const Status found = check_nvfp4(tensor, joined, sizeof joined);
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_NE(found.message().find("tensor experts: the scale of a block of 16 values, 1 in"), std::string::npos);
      for (int i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(got[16 + i]));
      continue;
    }
    EXPECT_TRUE(found.ok());
    const double scale = e4m3_to_float(static_cast<uint8_t>(bits));
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(got[i], 0.0f);
      EXPECT_EQ(got[16 + i], (i < 8 ? 1 : -1) * kE2M1[i % 8] * scale) << bits << " " << i;
    }
  }
}

TEST(Dequantize, a_nan_scale_is_a_nan_and_is_found) {
  std::byte rows[34] = {};
  float out[64];
  rows[17] = std::byte{255};
  ASSERT_TRUE(dequantize_row(Format::kMXFP4, rows, 64, out).ok());
  EXPECT_EQ(out[31], 0.0f);
  for (int i = 32; i < 64; ++i) EXPECT_TRUE(std::isnan(out[i]));
  TensorView tensor;
  tensor.name = "experts";
  EXPECT_TRUE(check_mxfp4(tensor, rows, 17).ok());
  const Status status = check_mxfp4(tensor, rows, 34);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("tensor experts: "), std::string::npos);
}

TEST(Dequantize, bytes_have_no_values) {
  std::byte row[4] = {};
  float out[4];
  EXPECT_EQ(dequantize_row(Format::kU8, row, 4, out).code(), StatusCode::kUnsupported);
}

TEST(Dequantize, half_has_all_classes) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0f);
  EXPECT_EQ(half_to_float(0xc000), -2.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(half_to_float(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(half_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::signbit(half_to_float(0x8000)));
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(half_to_float(0x7e01)));
  EXPECT_EQ(bfloat16_to_float(0x4049), 3.140625f);
}

}  // namespace
}  // namespace tailrace
