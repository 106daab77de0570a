#include "kernels/cuda/weight_form.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "weights/dequantize.h"

namespace tailrace::cuda {
namespace {

struct Case {
  Format format;
  WeightForm form;
  bool rounds;  // scales are products that are rounded to halves
};
constexpr Case kCases[] = {
    {Format::kBF16, WeightForm::kBf16, false}, {Format::kF16, WeightForm::kF16, false},
    {Format::kF8E4M3, WeightForm::kFp8, false}, {Format::kNVFP4, WeightForm::kNvfp4, false},
    {Format::kQ4_0, WeightForm::kInt4, false}, {Format::kQ4_1, WeightForm::kInt4, false},
    {Format::kQ4_K, WeightForm::kInt4, true},  {Format::kQ5_0, WeightForm::kInt8, false},
    {Format::kQ5_1, WeightForm::kInt8, false}, {Format::kQ5_K, WeightForm::kInt8, true},
    {Format::kQ6_K, WeightForm::kInt8, true},  {Format::kQ8_0, WeightForm::kInt8, false},
};

// Random stored rows: every bit pattern of codes and sub-scales, and halves of both signs from subnormal to 2^3.
std::vector<std::byte> random_rows(Format format, int64_t rows, int64_t cols, std::mt19937_64& rng) {
  std::vector<std::byte> bytes(stored_row_bytes(format, cols) * rows);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  const auto put_half = [&](size_t at) {
    const auto half = static_cast<uint16_t>((rng() & 0x8000) | rng() % 19 << 10 | (rng() & 0x3ff));
    std::memcpy(bytes.data() + at, &half, 2);
  };
  const size_t step = format_traits(format).block_bytes;
  for (size_t at = 0; at < bytes.size(); at += step) {
    switch (format) {
      case Format::kBF16:
      case Format::kF16:
      case Format::kF8E4M3:
        break;
      case Format::kNVFP4:  // a scale that is no number is refused when it is loaded
        if ((static_cast<uint8_t>(bytes[at]) & 0x7f) == 0x7f) bytes[at] = std::byte{0x7e};
        break;
      case Format::kQ6_K:
        put_half(at + 208);
        break;
      case Format::kQ4_1:
      case Format::kQ5_1:
      case Format::kQ4_K:
      case Format::kQ5_K:
        put_half(at + 2);
        [[fallthrough]];
      default:
        put_half(at);
    }
  }
  return bytes;
}

// A value of the packed form by the text of weight_form.h, and how far halves that were rounded may have moved it.
struct Value {
  double value = 0, slack = 0;
};

double half_at(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}

Value value_at(WeightForm form, const std::byte* packed, int64_t rows, int64_t cols, int64_t row, int64_t col) {
  const std::byte* values = packed + row * value_row_bytes(form, cols);
  if (form == WeightForm::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, values + col * 2, 2);
    return {bfloat16_to_float(bits), 0};
  }
  if (form == WeightForm::kF16) return {half_at(values + col * 2), 0};
  if (form == WeightForm::kFp8) {
    return {e4m3_to_float(static_cast<uint8_t>(values[col])), 0};
  }
  const std::byte* scales = packed + scales_offset(form, rows, cols) + row * scale_row_bytes(form, cols);
  double q, d, m;
  if (form == WeightForm::kNvfp4) {
    constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    uint32_t word;
    std::memcpy(&word, values + col / 8 * 4, 4);
    const uint32_t code = word >> int4_position(static_cast<int>(col % 8)) & 15;
    return {(code > 7 ? -1 : 1) * kValues[code & 7] * half_at(scales + col / 16 * 2) / kNvfp4Scale, 0};
  }
  if (form == WeightForm::kInt4) {
    uint32_t word;
    std::memcpy(&word, values + col / 8 * 4, 4);
    q = word >> int4_position(static_cast<int>(col % 8)) & 15;
    d = half_at(scales + col / 32 * 4), m = half_at(scales + col / 32 * 4 + 2);
  } else {
    q = static_cast<int8_t>(values[col]);
    d = half_at(scales + col / 32 * 8 + col % 32 / 16 * 2), m = half_at(scales + col / 32 * 8 + 4);
  }
  // Half an ulp of each half: 2^-11 of it, at least 2^-25; and the float32 roundings of dequantize.h.
  const double of_d = std::max(std::abs(d) * 0x1p-11, 0x1p-25), of_m = std::max(std::abs(m) * 0x1p-11, 0x1p-25);
  return {d * q + m, 1.001 * (std::abs(q) * of_d + of_m)};
}

void expect_packed(const Case& c, int64_t rows, int64_t cols, int64_t head_dim, std::mt19937_64& rng) {
  SCOPED_TRACE(std::string(format_traits(c.format).name) + " " + std::to_string(rows) + " x " + std::to_string(cols));
  const std::vector<std::byte> stored = random_rows(c.format, rows, cols, rng);
  const TensorView view = {"w", c.format, {rows, cols}, stored.data(), stored.size(), head_dim != 0, head_dim};
  const auto form = weight_form(view);
  const auto bytes = packed_bytes(view);
  ASSERT_TRUE(form && bytes);
  ASSERT_EQ(*form, c.form);
  std::vector<std::byte> packed(*bytes + 64, std::byte{0xa5});
  ASSERT_TRUE(pack(view, packed.data()).ok());
  for (size_t i = *bytes; i < packed.size(); ++i) ASSERT_EQ(packed[i], std::byte{0xa5}) << "written past the end";
  std::vector<std::byte> again(packed.size(), std::byte{0x5a});
  ASSERT_TRUE(pack(view, again.data()).ok());
  ASSERT_TRUE(std::equal(packed.begin(), packed.begin() + static_cast<int64_t>(*bytes), again.begin()))
      << "what pads rows and scales is what the memory held before";

  std::vector<float> expected(cols);
  for (int64_t row = 0; row < rows; ++row) {
    // Row i + s * half of a head in NeoX order is stored as row 2i + s.
    const int64_t half = head_dim / 2;
    const int64_t source =
        head_dim == 0 ? row : row / head_dim * head_dim + row % head_dim % half * 2 + row % head_dim / half;
    ASSERT_TRUE(dequantize_row(c.format, stored.data() + stored_row_bytes(c.format, cols) * source, cols,
                               expected.data()).ok());
    for (int64_t col = 0; col < cols; ++col) {
      const Value got = value_at(*form, packed.data(), rows, cols, row, col);
      const double want = expected[col];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got.value));
      } else if (std::isinf(want)) {
        ASSERT_EQ(got.value, want);
      } else if (c.rounds) {
        ASSERT_NEAR(got.value, want, got.slack) << "row " << row << " col " << col;
      } else {
        ASSERT_EQ(static_cast<float>(got.value), static_cast<float>(want)) << "row " << row << " col " << col;
      }
    }
  }
}

TEST(WeightForm, packed_values_are_those_of_the_stored_form) {
  std::mt19937_64 rng(1);
  for (const Case& c : kCases) {
    const int64_t block = format_traits(c.format).block_elems, unit = std::max<int64_t>(block, 32);
    for (const int64_t blocks : {1, 3, 8}) expect_packed(c, 5, blocks * unit, 0, rng);
  }
}

TEST(WeightForm, rows_in_pairwise_order_go_back_to_neox_order) {
  std::mt19937_64 rng(2);
  for (const Case& c : kCases) {
    expect_packed(c, 3 * 64, 256, 64, rng);
    expect_packed(c, 2 * 6, 256, 6, rng);
  }
}

TEST(WeightForm, every_8_bit_float_keeps_its_place) {
  std::vector<std::byte> stored(256);
  for (int i = 0; i < 256; ++i) stored[i] = static_cast<std::byte>(i);
  std::vector<std::byte> packed(256);
  ASSERT_TRUE(pack({"w", Format::kF8E4M3, {1, 256}, stored.data(), 256}, packed.data()).ok());
  for (int i = 0; i < 256; ++i) EXPECT_EQ(packed[i], stored[i]);
}

// A product of scales beyond the halves' range becomes the largest half, never an infinity.
TEST(WeightForm, scales_stay_finite) {
  std::vector<std::byte> stored(stored_row_bytes(Format::kQ6_K, 256));
  const uint16_t largest = 0x7bff;
  std::memset(stored.data() + 192, 127, 16);
  std::memcpy(stored.data() + 208, &largest, 2);
  const TensorView view = {"w", Format::kQ6_K, {1, 256}, stored.data(), stored.size()};
  std::vector<std::byte> packed(packed_bytes(view).value());
  ASSERT_TRUE(pack(view, packed.data()).ok());
  for (int64_t block = 0; block < 8; ++block) {
    EXPECT_EQ(half_at(packed.data() + scales_offset(WeightForm::kInt8, 1, 256) + block * 8), 65504.0);
  }
}

TEST(WeightForm, what_it_cannot_pack_is_refused_by_name) {
  const auto message = [](TensorView view) {
    const auto bytes = packed_bytes(view);
    EXPECT_FALSE(bytes.has_value());
    if (bytes) return std::string();
    EXPECT_EQ(bytes.error().code(), StatusCode::kUnsupported);
    EXPECT_NE(bytes.error().message().find("some.weight"), std::string::npos);
    return bytes.error().message();
  };
  EXPECT_NE(message({"some.weight", Format::kF32, {4, 64}}).find("F32"), std::string::npos);
  EXPECT_NE(message({"some.weight", Format::kBF16, {4, 44}}).find("44"), std::string::npos);
  EXPECT_NE(message({"some.weight", Format::kQ4_K, {4, 288}}).find("Q4_K"), std::string::npos);
  EXPECT_NE(message({"some.weight", Format::kBF16, {64}}).find("matrices"), std::string::npos);
  EXPECT_NE(message({"some.weight", Format::kBF16, {60, 64}, nullptr, 0, true, 32}).find("heads"), std::string::npos);
  std::byte out[1];
  EXPECT_EQ(pack({"some.weight", Format::kBF16, {4, 64}, out, 1}, out).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tailrace::cuda
