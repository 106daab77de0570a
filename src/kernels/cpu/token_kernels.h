// The per-token operations, written once over the vectors of vector_types.h and compiled for each instruction set.
#pragma once

#include "kernels/bf16.h"
#include "kernels/cpu/token_ops.h"
#include "kernels/cpu/vector_types.h"

namespace tailrace::cpu {
namespace {

// Calls body(i) for whole vectors; a tail of n % W values goes through body on padded copies by the caller's `tail`.
template <typename Body, typename Tail>
INLINE void for_vectors(int64_t n, const Body& body, const Tail& tail) {
  int64_t i = 0;
  for (; i + W <= n; i += W) body(i);
  if (i < n) tail(i, n - i);
}

// The last `count` < W values at p, zeros behind them.
INLINE V load_tail(const float* p, int64_t count) {
  alignas(64) float lanes[W] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}
INLINE void store_tail(float* p, V v, int64_t count) {
  alignas(64) float lanes[W];
  store(lanes, v);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// out[i] = f(a[i], b[i])
template <typename F>
INLINE void map2(const float* a, const float* b, int64_t n, float* out, const F& f) {
  for_vectors(
      n, [&](int64_t i) { store(out + i, f(load(a + i), load(b + i))); },
      [&](int64_t i, int64_t count) { store_tail(out + i, f(load_tail(a + i, count), load_tail(b + i, count)), count); });
}

// Four sums side by side, in an order that depends on n alone.
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  V sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    UNROLL for (int j = 0; j < 4; ++j) {
      const V v = load(x + i + j * W);
      sums[j] += v * v;
    }
  }
  for_vectors(
      n - i, [&](int64_t j) { sums[0] += load(x + i + j) * load(x + i + j); },
      [&](int64_t j, int64_t count) {
        const V v = load_tail(x + i + j, count);
        sums[1] += v * v;
      });
  const float squares = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  map2(x, weight, n, out, [&](V v, V w) { return v * scale * w; });
}

void rope(float* head, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const V a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
    store(head + i, a * c - b * s);
    store(head + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

INLINE V clamped_exp2(V x) { return exp2v(x < 126.0f ? x : splat(126.0f)); }

// 1 / (1 + e^-x)
INLINE V sigmoid(V x) { return 1.0f / (1.0f + clamped_exp2(x * -kLog2e)); }

void gate(Activation activation, const float* gate, const float* up, int64_t n, float* out) {
  if (activation == Activation::kSilu) {
    map2(gate, up, n, out, [](V g, V u) { return g * sigmoid(g) * u; });
  } else {  // 0.5 (1 + tanh z) = sigmoid(2 z)
    map2(gate, up, n, out, [](V g, V u) { return g * sigmoid(1.5957691216f * (g + 0.044715f * g * g * g)) * u; });
  }
}

void swiglu(const ClampedSwiglu& activation, const float* gate, const float* up, int64_t n, float* out) {
  const V limit = splat(activation.limit);
  const float alpha = activation.alpha;
  map2(gate, up, n, out, [&](V g, V u) {
    g = g < limit ? g : limit;
    u = u < limit ? u : limit;
    u = u > -limit ? u : -limit;
    return g * sigmoid(alpha * g) * (u + 1.0f);
  });
}

void gate_sigmoid(const float* gate, int64_t n, float* x) {
  map2(gate, x, n, x, [](V g, V v) { return v * sigmoid(g); });
}

void add_scaled(float w, const float* y, int64_t n, float* x) {
  map2(x, y, n, x, [&](V a, V b) { return a + w * b; });
}

void add(const float* y, int64_t n, float* x) {
  map2(x, y, n, x, [](V a, V b) { return a + b; });
}

void softcap(float cap, int64_t n, float* x) {  // tanh z = 2 sigmoid(2 z) - 1
  map2(x, x, n, x, [&](V v, V) { return cap * (2.0f * sigmoid(v * (2.0f / cap)) - 1.0f); });
}

void round_bf16(const float* x, int64_t n, uint16_t* out) {
  for_vectors(
      n,
      [&](int64_t i) {
        const V v = load(x + i);
        const VI bits = (VI)v;
        const VI rounded = bits + 0x7fff + ((bits >> 16) & 1);
        const VI kept = v == v ? rounded : (bits | 0x400000);
        *reinterpret_cast<VHU*>(out + i) = __builtin_convertvector((kept >> 16) & 0xffff, VH);
      },
      [&](int64_t i, int64_t count) {
        for (int64_t j = 0; j < count; ++j) out[i + j] = bf16_round(x[i + j]);
      });
}

INLINE VI e4m3_codes(V x) {
  const VI bits = x == x ? (VI)x : VI{};
  const V magnitude = (V)(bits & 0x7fffffff), a = magnitude < 448.0f ? magnitude : splat(448.0f);
  const VI normal = (((VI)a + 0x7ffff + (((VI)a >> 20) & 1)) >> 20) - (120 << 3);
  const VI subnormal = (VI)(a + 0x1p14f) & 15;  // multiples of 2^-9, which 2^14's last place rounds to
  return ((bits >> 24) & 0x80) | (a < 0x1p-6f ? subnormal : normal);
}

void round_e4m3(const float* x, int64_t n, uint8_t* out) {
  for_vectors(
      n,
      [&](int64_t i) {
        *reinterpret_cast<VBU*>(out + i) = __builtin_convertvector(e4m3_codes(load(x + i)), VB);
      },
      [&](int64_t i, int64_t count) {
        float rest[W] = {};
        for (int64_t j = 0; j < count; ++j) rest[j] = x[i + j];
        const VI codes = e4m3_codes(load(rest));
        for (int64_t j = 0; j < count; ++j) out[i + j] = static_cast<uint8_t>(codes[j]);
      });
}

}  // namespace
}  // namespace tailrace::cpu
