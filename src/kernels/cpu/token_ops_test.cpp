#include "kernels/cpu/token_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/reference/ops.h"
#include "weights/dequantize.h"

namespace tailrace::cpu {
namespace {

std::vector<const TokenKernels*> all_kernels() {
  std::vector<const TokenKernels*> kernels{token_portable()};
#if defined(__x86_64__)
  if (token_avx2() != nullptr && __builtin_cpu_supports("avx2")) kernels.push_back(token_avx2());
  if (token_avx512() != nullptr && __builtin_cpu_supports("avx512bw")) kernels.push_back(token_avx512());
#endif
  return kernels;
}

std::vector<float> random_values(int64_t n, uint64_t seed, float spread = 3.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = normal(rng);
  return values;
}

const int64_t kSizes[] = {1, 3, 15, 16, 17, 63, 64, 65, 576, 1000};

TEST(TokenOps, rms_norm_equals_the_reference) {
  for (const TokenKernels* kernels : all_kernels()) {
    for (int64_t n : kSizes) {
      const auto x = random_values(n, 1), w = random_values(n, 2);
      std::vector<float> out(x.size()), expected(x.size());
      reference::rms_norm({w.data(), 1e-5f}, x.data(), n, expected.data());
      kernels->rms_norm(x.data(), w.data(), 1e-5f, n, out.data());
      for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(out[i], expected[i], 2e-6 * (1 + std::abs(expected[i])));
    }
  }
}

TEST(TokenOps, gates_equal_the_reference_also_far_out) {
  for (const TokenKernels* kernels : all_kernels()) {
    for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      for (int64_t n : kSizes) {
        auto g = random_values(n, 3), u = random_values(n, 4, 1.0f);
        g[0] = n % 2 ? 200.0f : -200.0f;
        std::vector<float> out(g.size());
        kernels->gate(activation, g.data(), u.data(), n, out.data());
        for (size_t i = 0; i < g.size(); ++i) {
          const float expected = reference::activate(activation, g[i]) * u[i];
          EXPECT_NEAR(out[i], expected, 2e-6 * (1 + std::abs(expected))) << g[i];
        }
      }
    }
  }
}

TEST(TokenOps, rope_and_softcap_and_add_equal_the_reference) {
  for (const TokenKernels* kernels : all_kernels()) {
    for (int half : {1, 4, 8, 20, 32, 64}) {
      std::vector<float> inv_freq, cos, sin;
      for (int i = 0; i < half; ++i) {
        inv_freq.push_back(std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half)));
        cos.push_back(static_cast<float>(1.5 * std::cos(77.0 * inv_freq.back())));
        sin.push_back(static_cast<float>(1.5 * std::sin(77.0 * inv_freq.back())));
      }
      auto head = random_values(2 * half, 5), expected = head;
      reference::rope({inv_freq.data(), 2 * half, 1.5f, 0}, 77, expected.data());
      kernels->rope(head.data(), cos.data(), sin.data(), half);
      for (size_t i = 0; i < head.size(); ++i) EXPECT_NEAR(head[i], expected[i], 1e-5);
    }
    for (int64_t n : kSizes) {
      auto x = random_values(n, 6, 60.0f);
      const auto before = x, y = random_values(n, 7);
      kernels->softcap(30.0f, n, x.data());
      for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], reference::softcap(30.0f, before[i]), 2e-5);
      auto sum = before;
      kernels->add(y.data(), n, sum.data());
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(sum[i], before[i] + y[i]);
    }
  }
}

TEST(TokenOps, rounding_is_the_one_rule) {
  auto x = random_values(1000, 8);
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::quiet_NaN();
  x[3] = 3.4e38f;
  x[4] = 1.00390625f;  // a tie, to even
  for (const TokenKernels* kernels : all_kernels()) {
    for (int64_t n : kSizes) {
      std::vector<uint16_t> out(static_cast<size_t>(n));
      kernels->round_bf16(x.data(), n, out.data());
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], bf16_round(x[i])) << i;
    }
  }
}

TEST(TokenOps, e4m3_is_the_nearest_saturates_and_is_never_nan) {
  std::vector<float> x;
  for (int code = 0; code < 127; ++code) {  // each value, the tie behind it and both sides of that
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    const float tie = (value + e4m3_to_float(static_cast<uint8_t>(std::min(code + 1, 126)))) / 2;
    for (const float v : {value, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) x.insert(x.end(), {v, -v});
  }
  for (const float v : {449.0f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity(), 1e-40f}) {
    x.insert(x.end(), {v, -v});
  }
  x.push_back(std::numeric_limits<float>::quiet_NaN());
  x.push_back(-std::numeric_limits<float>::quiet_NaN());
  for (const TokenKernels* kernels : all_kernels()) {
    std::vector<uint8_t> out(x.size());
    for (const size_t n : {x.size(), size_t{7}}) {
      kernels->round_e4m3(x.data() + x.size() - n, static_cast<int64_t>(n), out.data());
      for (size_t i = 0; i < n; ++i) {
        const float from = x[x.size() - n + i];
        EXPECT_EQ(out[i], std::isnan(from) ? 0 : float_to_e4m3(from)) << from;
      }
    }
  }
}

}  // namespace
}  // namespace tailrace::cpu
