#include "kernels/cuda/expert_form.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "weights/dequantize.h"

namespace tailrace::cuda {
namespace {

// A value of the packed form by the text of expert_form.h.
float value_at(ExpertForm form, const std::byte* packed, int64_t cols, int64_t row, int64_t col) {
  const std::byte* unit = packed + (row / 64 * expert_units(cols) + col / 64) * expert_unit_bytes(form);
  const int r = static_cast<int>(row % 64), k = static_cast<int>(col % 64);
  const int warp = r / 16, step = k / 16, lane = r % 8 * 4 + k % 8 / 2, reg = r % 16 / 8 + k % 16 / 8 * 2, half = k % 2;
  if (form == ExpertForm::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, unit + ((warp * 4 + step) * 32 + lane) * 16 + reg * 4 + half * 2, 2);
    return bfloat16_to_float(bits);
  }
  const auto from_bits = [](uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  };
  uint32_t word;
  if (form == ExpertForm::kFp8) {
    std::memcpy(&word, unit + ((warp * 2 + step / 2) * 32 + lane) * 16 + step % 2 * 8 + reg / 2 * 4, 4);
    const uint32_t pair = reg % 2 == 0 ? (word & 0x80008000u) | (word >> 4 & 0x07f007f0u)
                                       : (word << 8 & 0x80008000u) | (word << 4 & 0x07f007f0u);
    return from_bits(pair >> 16 * half << 16) * 0x1p120f;
  }
  std::memcpy(&word, unit + (warp * 32 + lane) * 16 + step * 4, 4);
  // What the kernels do: shifts and masks to bf16, times the scale as bf16.
  const uint32_t pairs[4] = {word & 0x81c081c0u, word << 3 & 0x81c081c0u,
                             (word << 6 & 0x01c001c0u) | (word << 2 & 0x80008000u),
                             (word >> 3 & 0x01c001c0u) | (word << 1 & 0x80008000u)};
  const uint32_t value = pairs[reg] >> 16 * half << 16;
  if (form == ExpertForm::kMxfp4) return from_bits(value) * from_bits(static_cast<uint32_t>(unit[mxfp4_scale_at(r, k)]) << 23);
  const uint32_t scale = static_cast<uint32_t>(unit[nvfp4_scale_at(r, k)]) * 16 + kNvfp4ScaleBias;
  const float product = from_bits(value) * from_bits(scale << 16);
  EXPECT_TRUE(product == 0 || std::abs(product) >= 0x1p-126f) << "not a normal bf16";
  return product * kNvfp4Factor;
}

std::vector<std::byte> random_expert(Format format, int64_t rows, int64_t cols, std::mt19937_64& rng) {
  std::vector<std::byte> out(stored_row_bytes(format, cols) * static_cast<size_t>(rows));
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  if (format == Format::kNVFP4 || format == Format::kF8E4M3) {  // without NaN, which the loader refuses
    for (size_t at = 0; at < out.size(); at += format_traits(format).block_bytes) {
      if ((static_cast<uint8_t>(out[at]) & 0x7f) == 0x7f) out[at] ^= std::byte{1};
    }
    return out;
  }
  for (size_t at = 0; at < out.size(); at += format == Format::kMXFP4 ? 17 : 2) {
    if (format == Format::kMXFP4) {
      out[at] = static_cast<std::byte>(1 + rng() % 128);  // to the largest
    } else {
      out[at + 1] = static_cast<std::byte>(rng() & 0xbf);  // finite
    }
  }
  return out;
}

TEST(ExpertForm, packed_values_are_the_stored_ones) {
  std::mt19937_64 rng(1);
  for (const Format format : {Format::kBF16, Format::kMXFP4, Format::kNVFP4, Format::kF8E4M3}) {
    for (const int64_t cols : {32, 64, 160, 288}) {
      const int64_t rows = cols + 5;
      const auto stored = random_expert(format, rows, cols, rng);
      const TensorView view = {"e", format, {rows, cols}, stored.data(), stored.size()};
      const auto bytes = packed_expert_bytes(view);
      ASSERT_TRUE(bytes.has_value());
      std::vector<std::byte> packed(*bytes + 64, std::byte{0xa5});
      ASSERT_TRUE(pack_expert(view, packed.data()).ok());
      for (size_t i = *bytes; i < packed.size(); ++i) ASSERT_EQ(packed[i], std::byte{0xa5}) << "written past the end";
      std::vector<float> want(cols);
      const ExpertForm form = *expert_form_of(format);
      for (int64_t row = 0; row < expert_units(rows) * 64; ++row) {
        std::fill(want.begin(), want.end(), 0.0f);
        if (row < rows) {
          ASSERT_TRUE(
              dequantize_row(format, stored.data() + stored_row_bytes(format, cols) * row, cols, want.data()).ok());
        }
        for (int64_t col = 0; col < expert_units(cols) * 64; ++col) {
          const float expected = col < cols ? want[col] : 0.0f;
          ASSERT_EQ(value_at(form, packed.data(), cols, row, col), expected) << "row " << row << " col " << col;
        }
      }
    }
  }
}

// As on the CPU: 2^-127 times a value is nothing.
TEST(ExpertForm, a_scale_of_zero_counts_as_zero) {
  std::vector<std::byte> stored(17, std::byte{0x77}), packed(expert_unit_bytes(ExpertForm::kMxfp4));
  stored[0] = std::byte{0};
  ASSERT_TRUE(pack_expert({"e", Format::kMXFP4, {1, 32}, stored.data(), 17}, packed.data()).ok());
  for (int col = 0; col < 32; ++col) EXPECT_EQ(value_at(ExpertForm::kMxfp4, packed.data(), 32, 0, col), 0.0f);
}

TEST(ExpertForm, what_it_cannot_pack_is_refused_by_name) {
  const auto refused = [](const Status& status, const char* what) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("some.weight"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused(packed_expert_bytes({"some.weight", Format::kQ8_0, {4, 64}}).error(), "Q8_0");
  refused(packed_expert_bytes({"some.weight", Format::kBF16, {4, 60}}).error(), "60");
  refused(packed_expert_bytes({"some.weight", Format::kBF16, {64}}).error(), "matrix");
  std::vector<std::byte> stored(17), packed(expert_unit_bytes(ExpertForm::kMxfp4));
  stored[0] = std::byte{129};
  refused(pack_expert({"some.weight", Format::kMXFP4, {1, 32}, stored.data(), 17}, packed.data()), "row 0");
  EXPECT_EQ(pack_expert({"some.weight", Format::kMXFP4, {2, 32}, stored.data(), 17}, packed.data()).code(),
            StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tailrace::cuda
