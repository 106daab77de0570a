#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/linear_layout.h"
#include "weights/dequantize.h"

namespace tailrace::cpu {
namespace {

constexpr Format kFormats[] = {Format::kF32,  Format::kF16,  Format::kBF16, Format::kQ4_0, Format::kQ4_1, Format::kQ5_0,
                               Format::kQ5_1, Format::kQ8_0, Format::kQ4_K, Format::kQ5_K, Format::kQ6_K,
                               Format::kF8E4M3, Format::kMXFP4, Format::kNVFP4};
constexpr const char* kIsas[] = {"avx512_vnni", "avx2", "portable"};

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<void, Free>;
Aligned aligned(size_t bytes) {
  const size_t size = (bytes + 63) / 64 * 64 + 64;
  Aligned p(std::aligned_alloc(64, size));
  std::memset(p.get(), 0xa5, size);
  return p;
}

// Runs the body once per instruction set of this machine and restores the default choice.
template <typename F>
void for_each_isa(const F& body) {
  const std::string chosen = isa_name();
  for (const char* isa : kIsas) {
    if (!set_isa_for_test(isa)) continue;
    SCOPED_TRACE(isa);
    body();
  }
  ASSERT_TRUE(set_isa_for_test(chosen.c_str()));
}

uint16_t half_near(std::mt19937& rng) {  // finite, both signs, 2^-8 .. 2^-3
  return static_cast<uint16_t>((rng() & 0x8000) | (7 + rng() % 5) << 10 | (rng() & 0x3ff));
}

// Random stored rows: every bit pattern of codes and sub-scales, halves of sensible size.
std::vector<std::byte> random_rows(Format format, int64_t rows, int64_t cols, std::mt19937& rng) {
  std::vector<std::byte> bytes(stored_row_bytes(format, cols) * rows);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  const auto put = [&bytes](size_t at, uint16_t half) { std::memcpy(bytes.data() + at, &half, 2); };
  const size_t step = format_traits(format).block_bytes;
  for (size_t at = 0; at < bytes.size(); at += step) {
    switch (format) {
      case Format::kF32: {
        const float value = std::normal_distribution<float>()(rng);
        std::memcpy(bytes.data() + at, &value, 4);
        break;
      }
      case Format::kF16: put(at, half_near(rng)); break;
      case Format::kBF16:
        put(at, static_cast<uint16_t>((rng() & 0x8000) | (120 + rng() % 6) << 7 | (rng() & 0x7f)));
        break;
      case Format::kNVFP4:
      case Format::kF8E4M3: {
        if ((bytes[at] & std::byte{0x7f}) == std::byte{0x7f}) bytes[at] ^= std::byte{1};  // no NaN
        break;
      }
      case Format::kMXFP4: bytes[at] = static_cast<std::byte>(118 + rng() % 8); break;
      case Format::kQ6_K: put(at + 208, half_near(rng)); break;
      case Format::kQ4_1: case Format::kQ5_1: case Format::kQ4_K: case Format::kQ5_K:
        put(at + 2, half_near(rng));
        [[fallthrough]];
      default: put(at, half_near(rng));
    }
  }
  return bytes;
}

struct Packed {
  std::vector<std::byte> stored;
  TensorView view;
  Aligned data;
  Weight weight;
  std::vector<float> values;  // [rows, cols], dequantised in packed row order
  std::vector<float> scales;  // of F8_E4M3 and NVFP4
};

Packed make_packed(Format format, int64_t rows, int64_t cols, std::mt19937& rng, int64_t head_dim = 0,
                   int64_t scale_cols = 128) {
  Packed p;
  p.stored = random_rows(format, rows, cols, rng);
  p.view = {"w", format, {rows, cols}, p.stored.data(), p.stored.size(), head_dim != 0, head_dim};
  const Expected<size_t> bytes = packed_bytes(p.view);
  EXPECT_TRUE(bytes.has_value());
  p.data = aligned(*bytes);
  EXPECT_TRUE(pack(p.view, p.data.get()).ok());
  p.weight = {format, rows, cols, p.data.get(), nullptr};
  p.values.resize(rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t half = head_dim / 2;
    // GGUF's converter reshapes a head's rows [2, half] to [half, 2].
    const int64_t source =
        head_dim == 0 ? row : row / head_dim * head_dim + row % head_dim % half * 2 + row % head_dim / half;
    EXPECT_TRUE(dequantize_row(format, p.stored.data() + stored_row_bytes(format, cols) * source, cols,
                               p.values.data() + row * cols).ok());
  }
  if (format != Format::kF8E4M3 && format != Format::kNVFP4) return p;
  if (format == Format::kNVFP4) scale_cols = cols;
  const int64_t per_row = (cols + scale_cols - 1) / scale_cols;
  for (int64_t i = 0; i < rows * per_row; ++i) p.scales.push_back(0.01f * static_cast<float>(1 + rng() % 100));
  p.weight.scale = p.scales.data();
  p.weight.scale_cols = scale_cols;
  for (int64_t i = 0; i < rows * cols; ++i) p.values[i] *= p.scales[i / cols * per_row + i % cols / scale_cols];
  return p;
}

std::vector<float> random_input(int64_t m, int64_t k, std::mt19937& rng) {
  std::vector<float> x(m * k);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(rng) * (rng() % 64 == 0 ? 20.0f : 1.0f);
  return x;
}

Aligned prepared(InputKind kind, const std::vector<float>& x, int64_t m, int64_t k) {
  Aligned input = aligned(input_bytes(kind, m, k));
  prepare_input(kind, x.data(), k, 0, m, k, input.get());
  return input;
}

// The activations that the prepared form stands for.
std::vector<float> prepared_values(InputKind kind, const void* input, int64_t m, int64_t k) {
  std::vector<float> values(m * k);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const uint8_t* row = static_cast<const uint8_t*>(input) + input_bytes(kind, i, k);
      if (kind == InputKind::kInt8) {
        const InputBlock& block = reinterpret_cast<const InputBlock*>(row)[j / 32];
        values[i * k + j] = block.d * static_cast<float>(block.q[j % 32]);
      } else {
        values[i * k + j] = reinterpret_cast<const float*>(row)[j];
      }
    }
  }
  return values;
}

struct Exact {
  std::vector<double> y, magnitude;  // sum of products, and of their absolute values
};
Exact multiply(const std::vector<float>& w, const std::vector<float>& x, int64_t m, int64_t rows, int64_t k) {
  Exact exact{std::vector<double>(m * rows), std::vector<double>(m * rows)};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double product = static_cast<double>(w[r * k + j]) * x[i * k + j];
        sum += product;
        magnitude += std::fabs(product);
      }
      exact.y[i * rows + r] = sum;
      exact.magnitude[i * rows + r] = magnitude;
    }
  }
  return exact;
}

std::vector<float> run_linear(const Weight& weight, const void* input, int64_t m, int64_t y_stride) {
  std::vector<float> y(m * y_stride, std::numeric_limits<float>::quiet_NaN());
  linear(weight, input, m, 0, (weight.rows + kRowTile - 1) / kRowTile, y.data(), y_stride);
  return y;
}

// What rounding the activations to int8 may change in w . x: errors are uniform in half a step of max / 127, so eight
// standard deviations of their sum.
double rounding_bound(InputKind kind, const float* w, const float* x, int64_t k) {
  if (kind == InputKind::kF32) return 0;
  double variance = 0;
  for (int64_t b = 0; b < k; b += 32) {
    double largest = 0, squares = 0;
    for (int64_t j = b; j < b + 32; ++j) {
      largest = std::fmax(largest, std::fabs(x[j]));
      squares += static_cast<double>(w[j]) * w[j];
    }
    variance += squares * largest * largest / (127.0 * 127.0 * 12.0);
  }
  return 8 * std::sqrt(variance);
}

void check_format(Format format, int64_t rows, int64_t cols, uint32_t seed, int64_t scale_cols = 128) {
  std::mt19937 rng(seed);
  Packed p = make_packed(format, rows, cols, rng, 0, scale_cols);
  std::vector<float> bias = random_input(1, rows, rng);
  const InputKind kind = input_kind(format);
  constexpr int64_t kMaxRows = 64;
  const std::vector<float> x = random_input(kMaxRows, cols, rng);
  // Every instruction set prepares the same activations: a test below.
  const Exact stored = multiply(
      p.values, prepared_values(kind, prepared(kind, x, kMaxRows, cols).get(), kMaxRows, cols), kMaxRows, rows, cols);
  const Exact floats = multiply(p.values, x, kMaxRows, rows, cols);
  for_each_isa([&] {
    const Aligned all = prepared(kind, x, kMaxRows, cols);
    for (int64_t m : {1, 2, 3, 5, 8, 17, 64}) {
      const int64_t stride = rows + 3;
      p.weight.bias = m % 2 == 0 ? bias.data() : nullptr;
      const std::vector<float> y = run_linear(p.weight, all.get(), m, stride);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t r = 0; r < rows; ++r) {
          const double added = p.weight.bias == nullptr ? 0.0 : bias[r];
          // fp32 sums of `cols` terms: rounding is a small multiple of the magnitude's epsilon.
          const double magnitude = stored.magnitude[i * rows + r] + std::fabs(added);
          ASSERT_NEAR(y[i * stride + r], stored.y[i * rows + r] + added, 4e-6 * magnitude)
              << format_traits(format).name << " m=" << m << " row " << i << " output " << r;
          const double loose = rounding_bound(kind, p.values.data() + r * cols, x.data() + i * cols, cols);
          ASSERT_NEAR(y[i * stride + r], floats.y[i * rows + r] + added, loose + 4e-6 * magnitude);
        }
        for (int64_t r = rows; r < stride; ++r) ASSERT_TRUE(std::isnan(y[i * stride + r])) << "wrote past the row";
      }
    }
  });
}

TEST(Linear, every_format_matches_float64) {
  uint32_t seed = 100;
  for (Format format : kFormats) {
    SCOPED_TRACE(format_traits(format).name);
    const bool k_quant = format_traits(format).block_elems == 256;
    check_format(format, 40, k_quant ? 512 : 576, ++seed);
    check_format(format, 16, k_quant ? 256 : 32, ++seed);
    check_format(format, 83, k_quant ? 2816 : 2848, ++seed);  // 89 blocks: groups and panels end with a single one
    check_format(format, 1, k_quant ? 256 : 64, ++seed);
  }
  check_format(Format::kBF16, 21, 33, ++seed);  // an odd k
  check_format(Format::kF16, 21, 33, ++seed);
  check_format(Format::kF32, 21, 33, ++seed);
  check_format(Format::kF8E4M3, 21, 33, ++seed);
  check_format(Format::kF8E4M3, 83, 576, ++seed, 576);  // one scale a row
  check_format(Format::kMXFP4, 35, 2880, ++seed);  // the width of gpt-oss
  check_format(Format::kNVFP4, 35, 704, ++seed);   // Gemma 4's experts
}

// Every code of E2M1 by every scale but NaN, against powers of two: fp32 sums of one product each.
TEST(Linear, mxfp4_has_all_codes_and_scales) {
  constexpr int kRows = 16, kScales = 255;
  std::vector<std::byte> stored(static_cast<size_t>(kRows) * kScales * 17);
  for (int row = 0; row < kRows; ++row) {
    for (int e = 0; e < kScales; ++e) {
      std::byte* block = stored.data() + (row * kScales + e) * 17;
      block[0] = static_cast<std::byte>(e);
      block[1] = static_cast<std::byte>(row);  // value 0 is the row's code; value 16 is 0
    }
  }
  const int64_t cols = kScales * 32;
  const TensorView view{"w", Format::kMXFP4, {kRows, cols}, stored.data(), stored.size(), false, 0};
  const Aligned data = aligned(*packed_bytes(view));
  ASSERT_TRUE(pack(view, data.get()).ok());
  const Weight weight{Format::kMXFP4, kRows, cols, data.get()};
  constexpr double kE2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for_each_isa([&] {
    for (int e = 16; e < kScales; ++e) {  // below, the product with 1/127 leaves fp32's normal numbers
      std::vector<float> x(cols, 0.0f);
      x[e * 32] = 0.0625f;
      const std::vector<float> y = run_linear(weight, prepared(InputKind::kInt8, x, 1, cols).get(), 1, kRows);
      for (int row = 0; row < kRows; ++row) {
        const double value = (row < 8 ? 1 : -1) * kE2M1[row % 8] * std::ldexp(1.0, e - 127) * 0.0625;
        ASSERT_NEAR(y[row], value, 1e-6 * std::fabs(value)) << "scale " << e << " code " << row;
      }
    }
  });
}

TEST(Linear, a_row_does_not_depend_on_how_many_share_the_call) {
  std::mt19937 rng(7);
  for (Format format : kFormats) {
    SCOPED_TRACE(format_traits(format).name);
    const int64_t rows = 70, cols = 1536;
    Packed p = make_packed(format, rows, cols, rng);
    const std::vector<float> bias = random_input(1, rows, rng);
    p.weight.bias = bias.data();
    const InputKind kind = input_kind(format);
    const std::vector<float> x = random_input(64, cols, rng);
    for_each_isa([&] {
      const Aligned all = prepared(kind, x, 64, cols);
      const std::vector<float> together = run_linear(p.weight, all.get(), 64, rows);
      for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 19, 40}) {
        const int64_t first = 64 - m;
        std::vector<float> y(m * rows, std::numeric_limits<float>::quiet_NaN());
        const auto* input = static_cast<const uint8_t*>(all.get()) + input_bytes(kind, first, cols);
        // Tiles in two uneven calls, as threads would take them.
        linear(p.weight, input, m, 3, 5, y.data(), rows);
        linear(p.weight, input, m, 0, 3, y.data(), rows);
        ASSERT_EQ(0, std::memcmp(y.data(), together.data() + first * rows, y.size() * sizeof(float))) << "m=" << m;
      }
    });
  }
}

TEST(Linear, more_rows_than_one_sweep_of_the_cache) {
  std::mt19937 rng(8);
  const int64_t rows = 48, cols = 2048, m = 301;
  for (Format format : {Format::kQ4_1, Format::kBF16}) {
    Packed p = make_packed(format, rows, cols, rng);
    const std::vector<float> x = random_input(m, cols, rng);
    const InputKind kind = input_kind(format);
    const Aligned all = prepared(kind, x, m, cols);
    const std::vector<float> y = run_linear(p.weight, all.get(), m, rows);
    for (int64_t i : {0, 1, 127, 128, 255, 256, 299, 300}) {
      const auto* row = static_cast<const uint8_t*>(all.get()) + input_bytes(kind, i, cols);
      const std::vector<float> alone = run_linear(p.weight, row, 1, rows);
      EXPECT_EQ(0, std::memcmp(alone.data(), y.data() + i * rows, rows * sizeof(float))) << i;
    }
  }
}

TEST(Linear, lookup_equals_dequantisation_bit_for_bit) {
  std::mt19937 rng(9);
  for (Format format : kFormats) {
    const int64_t rows = 37, cols = 768;
    const Packed p = make_packed(format, rows, cols, rng);
    std::vector<float> out(cols);
    for (int64_t row = 0; row < rows; ++row) {
      std::fill(out.begin(), out.end(), -1e30f);
      lookup_row(p.weight, row, out.data());
      ASSERT_EQ(0, std::memcmp(out.data(), p.values.data() + row * cols, cols * sizeof(float)))
          << format_traits(format).name << " row " << row;
    }
  }
}

TEST(Linear, interleaved_rope_rows_are_undone) {
  std::mt19937 rng(10);
  for (Format format : {Format::kF32, Format::kBF16, Format::kQ4_1, Format::kQ6_K}) {
    const int64_t rows = 3 * 24, cols = 256;  // 3 heads of 24: tiles cross heads
    const Packed p = make_packed(format, rows, cols, rng, 24);
    std::vector<float> out(cols);
    for (int64_t row = 0; row < rows; ++row) {
      lookup_row(p.weight, row, out.data());
      ASSERT_EQ(0, std::memcmp(out.data(), p.values.data() + row * cols, cols * sizeof(float))) << row;
    }
  }
}

TEST(Linear, packed_size_stays_near_the_stored_one) {
  for (Format format : kFormats) {
    TensorView view{"w", format, {4096, 4096}, nullptr, stored_row_bytes(format, 4096) * 4096, false, 0};
    EXPECT_LE(*packed_bytes(view), view.bytes * 103 / 100) << format_traits(format).name;
  }
}

TEST(Linear, wrong_shapes_are_errors_that_name_the_tensor) {
  const auto fails = [](const TensorView& view) {
    const Expected<size_t> bytes = packed_bytes(view);
    return !bytes.has_value() && bytes.error().message().find(view.name) != std::string::npos &&
           !pack(view, nullptr).ok();
  };
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {4}, nullptr, 16, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {4, 0}, nullptr, 0, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {-4, 4}, nullptr, 64, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kQ4_0, {4, 48}, nullptr, 108, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kQ4_K, {4, 288}, nullptr, 648, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kMXFP4, {4, 48}, nullptr, 102, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kNVFP4, {4, 48}, nullptr, 108, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kU8, {4, 4}, nullptr, 16, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {4, 4}, nullptr, 63, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {int64_t{1} << 62, 4}, nullptr, 64, false, 0}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {6, 4}, nullptr, 96, true, 4}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {6, 4}, nullptr, 96, true, 3}));
  EXPECT_TRUE(fails({"layer.w", Format::kF32, {6, 4}, nullptr, 96, true, 0}));
}

TEST(Linear, hostile_activations_end_in_nan_or_zero_not_in_garbage) {
  std::mt19937 rng(11);
  const Packed p = make_packed(Format::kQ4_1, 16, 64, rng);
  for_each_isa([&] {
    std::vector<float> x(64, 0.0f);
    std::vector<float> y = run_linear(p.weight, prepared(InputKind::kInt8, x, 1, 64).get(), 1, 16);
    for (float value : y) EXPECT_EQ(value, 0.0f);
    x[40] = 1e-38f;
    y = run_linear(p.weight, prepared(InputKind::kInt8, x, 1, 64).get(), 1, 16);
    for (float value : y) EXPECT_EQ(value, 0.0f);
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      x[40] = bad;
      y = run_linear(p.weight, prepared(InputKind::kInt8, x, 1, 64).get(), 1, 16);
      for (float value : y) EXPECT_FALSE(std::isfinite(value));
    }
  });
}

TEST(Linear, instruction_sets_agree_on_the_prepared_activations) {
  std::mt19937 rng(12);
  std::vector<float> x = random_input(3, 320, rng);
  x[5] = 0.0f;
  for (InputKind kind : {InputKind::kInt8, InputKind::kF32}) {
    std::vector<std::vector<float>> seen;
    for_each_isa([&] { seen.push_back(prepared_values(kind, prepared(kind, x, 3, 320).get(), 3, 320)); });
    for (const std::vector<float>& values : seen) EXPECT_EQ(values, seen.front());
  }
  EXPECT_FALSE(set_isa_for_test("mmx"));
}

}  // namespace
}  // namespace tailrace::cpu
