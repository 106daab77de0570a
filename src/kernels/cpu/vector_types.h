// Vectors of TAILRACE_LANES floats and what the kernels build on: loads, shuffles, reductions, exponentials. Included once
// by the one file of each instruction set; everything has internal linkage, so that no copy is shared with a machine that
// cannot run it.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

namespace tailrace::cpu {
namespace {

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

constexpr int W = TAILRACE_LANES;
typedef float V __attribute__((vector_size(W * 4)));
typedef int32_t VI __attribute__((vector_size(W * 4)));
typedef uint16_t VH __attribute__((vector_size(W * 2)));
typedef float VU __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t VIU __attribute__((vector_size(W * 4), aligned(2), may_alias));
typedef uint16_t VHU __attribute__((vector_size(W * 2), aligned(2), may_alias));

constexpr float kLog2e = 1.44269504f;
constexpr float kNegInf = -HUGE_VALF;
INLINE V load(const float* p) { return *reinterpret_cast<const VU*>(p); }
INLINE void store(float* p, V v) { *reinterpret_cast<VU*>(p) = v; }
INLINE V splat(float x) { return x - V{}; }
INLINE V load_bf16(const uint16_t* p) {
  const VH half = *reinterpret_cast<const VHU*>(p);
  return (V)(__builtin_convertvector(half, VI) << 16);
}
INLINE V vmax(V a, V b) { return a > b ? a : b; }

// Halves of two vectors interleaved in runs of Step lanes: the butterfly of transposition and of reduction.
template <int Step, size_t... L>
INLINE V low_runs(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, ((L / Step) % 2 == 0 ? L : L - Step + W)...);
}
template <int Step, size_t... L>
INLINE V high_runs(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, ((L / Step) % 2 == 0 ? L + Step : L + W)...);
}
using Lanes = std::make_index_sequence<W>;

template <int Step = W / 2>
INLINE void transpose(V* r) {
  UNROLL for (int i = 0; i < W; ++i) {
    if (i & Step) continue;
    const V a = r[i], b = r[i + Step];
    r[i] = low_runs<Step>(a, b, Lanes{});
    r[i + Step] = high_runs<Step>(a, b, Lanes{});
  }
  if constexpr (Step > 1) transpose<Step / 2>(r);
}

// Lane i of the result is the sum of r[i]'s lanes. Destroys r.
template <int Step = W / 2>
INLINE V sums_of(V* r) {
  UNROLL for (int i = 0; i < Step; ++i) {
    r[i] = low_runs<Step>(r[i], r[i + Step], Lanes{}) + high_runs<Step>(r[i], r[i + Step], Lanes{});
  }
  if constexpr (Step > 1) return sums_of<Step / 2>(r);
  return r[0];
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

// 2^x for x <= 126, relative error 2e-7; 0 below -126. Cephes' polynomial on [-0.5, 0.5].
INLINE V exp2v(V x) {
  const V clamped = vmax(x, splat(-126.0f));
  const V shifted = clamped + 12582912.0f;  // 1.5 * 2^23: the low mantissa bits hold the rounded integer
  const V f = clamped - (shifted - 12582912.0f);
  V p = splat(1.535336188e-4f);
  p = p * f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1.0f;
  const V scaled = (V)((VI)p + ((VI)shifted << 23));
  return x < -126.0f ? V{} : scaled;
}
INLINE float exp2s(float x) { return exp2v(splat(x))[0]; }

}  // namespace
}  // namespace tailrace::cpu
