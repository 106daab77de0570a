// Random weights made in packed form: their distribution, the same bytes for the same seed, none that is not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/linear.h"

namespace tailrace::cpu {
namespace {

struct Random {
  TensorView shape;
  std::vector<std::byte> packed;
};

Random make(Format format, int64_t rows, int64_t cols, uint64_t seed, float deviation) {
  Random out;
  out.shape.name = "w";
  out.shape.format = format;
  out.shape.shape = {rows, cols};
  out.shape.bytes = stored_row_bytes(format, cols) * static_cast<size_t>(rows);
  const auto bytes = packed_bytes(out.shape);
  EXPECT_TRUE(bytes.has_value());
  out.packed.assign(*bytes, std::byte{0xee});
  const auto made = pack_random(out.shape, seed, deviation, out.packed.data());
  EXPECT_TRUE(made.has_value() && *made);
  return out;
}

TEST(LinearRandom, values_have_the_deviation_asked_for) {
  constexpr int64_t kRows = 96, kCols = 2880;  // 2880: 11 groups of 8 blocks and one of 2
  for (const Format format : {Format::kBF16, Format::kF8E4M3, Format::kMXFP4, Format::kNVFP4}) {
    SCOPED_TRACE(format_traits(format).name);
    const float deviation = format == Format::kF8E4M3 || format == Format::kNVFP4 ? 32.0f : 0.0186f;
    const Random random = make(format, kRows, kCols, 7, deviation);
    double sum = 0, squares = 0;
    std::vector<float> row(kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      lookup_row({.format = format, .rows = kRows, .cols = kCols, .data = random.packed.data()}, r, row.data());
      for (const float value : row) {
        ASSERT_TRUE(std::isfinite(value));
        sum += value;
        squares += double{value} * value;
      }
    }
    constexpr double kCount = kRows * kCols;
    EXPECT_NEAR(sum / kCount / deviation, 0, 0.02);
    // Nearest to the deviation: a power of two for MXFP4, one of 16 values of E4M3 between two of those for NVFP4.
    const double bound = format == Format::kMXFP4 ? 0.51 : format == Format::kNVFP4 ? 0.1 : 0.02;
    EXPECT_NEAR(std::log2(std::sqrt(squares / kCount) / deviation), 0, bound);
  }
}

TEST(LinearRandom, a_seed_gives_all_bytes) {
  for (const Format format : {Format::kBF16, Format::kF8E4M3, Format::kMXFP4, Format::kNVFP4}) {
    for (const int64_t cols : {32, 96, 288}) {
      SCOPED_TRACE(std::string(format_traits(format).name) + " " + std::to_string(cols));
      const Random one = make(format, 40, cols, 1, 0.1f), other = make(format, 40, cols, 2, 0.1f);
      EXPECT_EQ(make(format, 40, cols, 1, 0.1f).packed, one.packed);
      EXPECT_NE(other.packed, one.packed);
      std::vector<std::byte> again(one.packed.size(), std::byte{0x11});
      EXPECT_TRUE(*pack_random(one.shape, 1, 0.1f, again.data()));
      EXPECT_EQ(again, one.packed);
    }
  }
}

TEST(LinearRandom, other_formats_are_left_to_the_caller) {
  TensorView shape;
  shape.format = Format::kQ4_0;
  shape.shape = {16, 32};
  shape.bytes = 16 * 18;
  std::vector<std::byte> packed(*packed_bytes(shape));
  EXPECT_FALSE(*pack_random(shape, 1, 0.1f, packed.data()));
}

}  // namespace
}  // namespace tailrace::cpu
