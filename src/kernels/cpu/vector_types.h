// Vectors of TAILRACE_LANES floats and what the kernels build on: loads, shuffles, reductions, exponentials. Included once
// by the one file of each instruction set; everything has internal linkage, so that no copy is shared with a machine that
// cannot run it.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#if TAILRACE_LANES == 16
#include <immintrin.h>
#endif

namespace tailrace::cpu {
namespace {

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

constexpr int W = TAILRACE_LANES;
typedef float V __attribute__((vector_size(W * 4)));
typedef int32_t VI __attribute__((vector_size(W * 4)));
typedef uint16_t VH __attribute__((vector_size(W * 2)));
typedef uint8_t VB __attribute__((vector_size(W)));
typedef float VU __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t VIU __attribute__((vector_size(W * 4), aligned(2), may_alias));
typedef uint16_t VHU __attribute__((vector_size(W * 2), aligned(2), may_alias));
typedef uint8_t VBU __attribute__((vector_size(W), aligned(1), may_alias));
// 2 * W halves and bytes.
typedef int16_t VS __attribute__((vector_size(W * 4)));
typedef int16_t VSU __attribute__((vector_size(W * 4), aligned(2), may_alias));
typedef uint8_t VB2U __attribute__((vector_size(W * 2), aligned(1), may_alias));
typedef int16_t VS1 __attribute__((vector_size(W * 2)));
typedef int16_t VS1U __attribute__((vector_size(W * 2), aligned(2), may_alias));

constexpr float kLog2e = 1.44269504f;
constexpr float kNegInf = -HUGE_VALF;
INLINE V load(const float* p) { return *reinterpret_cast<const VU*>(p); }
INLINE void store(float* p, V v) { *reinterpret_cast<VU*>(p) = v; }
INLINE V splat(float x) { return x - V{}; }
INLINE V load_bf16(const uint16_t* p) {
  const VH half = *reinterpret_cast<const VHU*>(p);
  return (V)(__builtin_convertvector(half, VI) << 16);
}
// The even and the odd ones of 2 * W bf16, whose pairs one vector of 32-bit words holds.
INLINE V even_bf16(VI pairs) { return (V)(pairs << 16); }
INLINE V odd_bf16(VI pairs) { return (V)(pairs & static_cast<int32_t>(0xffff0000u)); }
INLINE VI load_pairs(const uint16_t* p) { return *reinterpret_cast<const VIU*>(p); }
INLINE V vmax(V a, V b) { return a > b ? a : b; }

// e4m3 as bf16, exactly; codes of NaN read as 480. Magnitudes lie on four lines, the least of which holds: of normal
// ones, and of subnormals by their highest bit.
template <typename S>
INLINE S bf16_of_e4m3(S codes) {
  const auto least = [](S a, S b) { return a < b ? a : b; };
  const S m = codes & 0x7f;
  const S bits = least(least((m << 4) + 0x3c00, (m << 5) + 0x3b80), least((m << 6) + 0x3b00, (m << 7) + 0x3a80));
  return (bits & (m != 0)) | ((codes & 0x80) << 8);
}
// n of them, a multiple of W.
INLINE void widen_e4m3(const uint8_t* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const VB2U codes = *reinterpret_cast<const VB2U*>(from + i);
    *reinterpret_cast<VSU*>(to + i) = bf16_of_e4m3(__builtin_convertvector(codes, VS));
  }
  if (i < n) {
    const VBU codes = *reinterpret_cast<const VBU*>(from + i);
    *reinterpret_cast<VS1U*>(to + i) = bf16_of_e4m3(__builtin_convertvector(codes, VS1));
  }
}

// Shuffles of two vectors. Runs: halves interleaved in runs of Step lanes. The others work on parts of four lanes, whose
// instructions need no index registers.
template <int Step, size_t... L>
INLINE V low_runs(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, ((L / Step) % 2 == 0 ? L : L - Step + W)...);
}
template <int Step, size_t... L>
INLINE V high_runs(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, ((L / Step) % 2 == 0 ? L + Step : L + W)...);
}
template <size_t High, size_t... L>  // a0 b0 a1 b1 of each part, or a2 b2 a3 b3
INLINE V unpack(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, (L / 4 * 4 + High * 2 + L % 4 / 2 + L % 2 * W)...);
}
template <size_t Odd, size_t... L>  // the even or the odd parts of a, then of b
INLINE V parts(V a, V b, std::index_sequence<L...>) {
  constexpr size_t kHalf = W >= 8 ? W / 8 : 1;
  return __builtin_shufflevector(a, b, ((L / 4 % kHalf * 2 + Odd) * 4 + L % 4 + L / 4 / kHalf * W)...);
}
using Lanes = std::make_index_sequence<W>;

// r[i][j] <-> r[j][i]: 4 x 4 within parts, then whole parts change places.
INLINE void transpose(V* r) {
  UNROLL for (int i = 0; i < W; i += 4) {
    const V a = unpack<0>(r[i], r[i + 1], Lanes{}), b = unpack<1>(r[i], r[i + 1], Lanes{});
    const V c = unpack<0>(r[i + 2], r[i + 3], Lanes{}), d = unpack<1>(r[i + 2], r[i + 3], Lanes{});
    r[i] = low_runs<2>(a, c, Lanes{});  // part l: column 4 l of rows i to i + 3
    r[i + 1] = high_runs<2>(a, c, Lanes{});
    r[i + 2] = low_runs<2>(b, d, Lanes{});
    r[i + 3] = high_runs<2>(b, d, Lanes{});
  }
  if constexpr (W >= 8) {
    UNROLL for (int half = 0; half < W; half += 8) {
      UNROLL for (int c = half; c < half + 4; ++c) {
        const V even = parts<0>(r[c], r[c + 4], Lanes{}), odd = parts<1>(r[c], r[c + 4], Lanes{});
        r[c] = even;
        r[c + 4] = odd;
      }
    }
  }
  if constexpr (W >= 16) {
    V columns[W];
    UNROLL for (int c = 0; c < 4; ++c) {
      columns[c] = parts<0>(r[c], r[c + 8], Lanes{});
      columns[c + 8] = parts<1>(r[c], r[c + 8], Lanes{});
      columns[c + 4] = parts<0>(r[c + 4], r[c + 12], Lanes{});
      columns[c + 12] = parts<1>(r[c + 4], r[c + 12], Lanes{});
    }
    UNROLL for (int c = 0; c < W; ++c) r[c] = columns[c];
  }
}

// even and odd lanes of 2 * W values, back in order.
template <size_t... L>
INLINE void interleave(V* even, V* odd, std::index_sequence<L...>) {
  const V low = __builtin_shufflevector(*even, *odd, (L % 2 * W + L / 2)...);
  const V high = __builtin_shufflevector(*even, *odd, (L % 2 * W + W / 2 + L / 2)...);
  *even = low;
  *odd = high;
}

template <int Step = W / 2>
INLINE float max_lane(V v) {
  v = vmax(v, high_runs<Step>(v, v, Lanes{}));
  if constexpr (Step > 1) return max_lane<Step / 2>(v);
  return v[0];
}
template <int Step = W / 2>
INLINE float sum_lanes(V v) {
  v = v + high_runs<Step>(v, v, Lanes{});
  if constexpr (Step > 1) return sum_lanes<Step / 2>(v);
  return v[0];
}

// 2^x for x <= 126, relative error 2e-7; 0 at -infinity and far below. Minimax polynomials of degree 5.
#if TAILRACE_LANES == 16
INLINE V exp2v(V x) {
  const V f = (V)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  V p = splat(1.8775767e-3f);
  p = p * f + 8.9893406e-3f;
  p = p * f + 5.5826318e-2f;
  p = p * f + 2.4015361e-1f;
  p = p * f + 6.9315308e-1f;
  p = p * f + 9.9999994e-1f;
  return (V)_mm512_scalef_ps((__m512)p, (__m512)x);
}
#else
INLINE V exp2v(V x) {
  const V clamped = vmax(x, splat(-126.0f));
  const V shifted = clamped + 12582912.0f;  // 1.5 * 2^23: the low mantissa bits hold the rounded integer
  const V f = clamped - (shifted - 12582912.0f);
  V p = splat(1.3276471e-3f);
  p = p * f + 9.6755410e-3f;
  p = p * f + 5.5507131e-2f;
  p = p * f + 2.4022120e-1f;
  p = p * f + 6.9314694e-1f;
  p = p * f + 1.0f;
  const V scaled = (V)((VI)p + ((VI)shifted << 23));
  return x < -126.0f ? V{} : scaled;
}
#endif
INLINE float exp2s(float x) { return exp2v(splat(x))[0]; }

}  // namespace
}  // namespace tailrace::cpu
