// The small operations on one token's values between the matrix products: norm, rope, gated activation, rounding.
#pragma once

#include <cstdint>

#include "kernels/blocks.h"

namespace tailrace::cpu {

// The kernels of one instruction set. Any n; in and out may be the same array.
struct TokenKernels {
  // out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]; weight not null.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // Rotates the pairs (i, i + half) of a head: cos and sin [half], scale included.
  void (*rope)(float* head, const float* cos, const float* sin, int64_t half);
  // out[i] = act(gate[i]) * up[i].
  void (*gate)(Activation activation, const float* gate, const float* up, int64_t n, float* out);
  // out[i] = act(gate[i], up[i]).
  void (*swiglu)(const ClampedSwiglu& activation, const float* gate, const float* up, int64_t n, float* out);
  void (*gate_sigmoid)(const float* gate, int64_t n, float* x);  // x *= sigmoid(gate)
  void (*add)(const float* y, int64_t n, float* x);             // x += y
  void (*add_scaled)(float w, const float* y, int64_t n, float* x);  // x += w y
  void (*softcap)(float cap, int64_t n, float* x);              // x = cap * tanh(x / cap)
  void (*round_bf16)(const float* x, int64_t n, uint16_t* out);  // as bf16_round
  void (*round_e4m3)(const float* x, int64_t n, uint8_t* out);   // as float_to_e4m3, but a NaN becomes 0
};

const TokenKernels& token_kernels();      // follows isa_name()
const TokenKernels* token_avx512();       // null where not built in
const TokenKernels* token_avx2();
const TokenKernels* token_portable();

}  // namespace tailrace::cpu
