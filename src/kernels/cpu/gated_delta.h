// The gated delta rule on the CPU (blocks.h: GatedDeltaBlock): one token at a time for decode rows, 64 at a time for
// extend rows, whose products then find the state in registers and caches.
//
// Of a chunk with G_i the sum of g up to token i, D_ij = exp(G_i - G_j) for j <= i (at most 1, since g <= 0), K, Q, V
// its rows and S the state before it:
//   (I + A) U = beta (V - e^G K S), A = strictly lower (beta K K^T D): solved from the first row down
//   O = e^G Q S + lower(Q K^T D) U
//   S = e^(G_last) S + (e^(G_last - G) K)^T U
#pragma once

#include <cstdint>

#include "kernels/blocks.h"

namespace tailrace::cpu {

inline constexpr int kDeltaChunk = 64;

// One v-head. k_dim and v_dim are multiples of 16.
struct DeltaHead {
  const float *q, *k, *v;        // of the first token: q and k normed, q scaled
  int64_t stride = 0;            // floats to the next token's
  const float *g, *beta;         // [tokens]: log of the decay, and the rule's step
  float* state = nullptr;        // [k_dim, v_dim]
  float* out = nullptr;          // [v_dim] of the first token
  int64_t out_stride = 0;
  int k_dim = 0, v_dim = 0;
};

// Products of a chunk's keys that all v-heads of a k-head share, and room to work in.
struct DeltaScratch {
  float* k_t;   // [k_dim, kDeltaChunk] keys, transposed; zero behind the last
  float* kk;    // [kDeltaChunk, kDeltaChunk] k_i . k_j, lower part
  float* qk;    // the same of q_i . k_j
  float* a;     // [kDeltaChunk, kDeltaChunk] each:
  float* p;
  float* k_w;   // [k_dim, kDeltaChunk]
  float* u;     // [kDeltaChunk, v_dim]

  DeltaScratch(float* base, int64_t k_dim);
};
int64_t delta_scratch_floats(int64_t k_dim, int64_t v_dim);

// The kernels of one instruction set.
struct DeltaKernels {
  // n channels of `tokens` tokens, in place, newest first: x[t] = silu(sum_j weight[j] x[t - (width - 1) + j]).
  // x: [tokens][stride], before: [width - 1][before_stride] inputs in front of them, weight: [width][n].
  void (*convolve)(const float* before, int64_t before_stride, const float* weight, int width, int64_t n,
                   int64_t tokens, float* x, int64_t stride);
  // x = x * scale * rsqrt(sum x^2 + GatedDeltaBlock::kL2Eps)
  void (*l2_norm)(float scale, int64_t n, float* x);
  void (*step)(const DeltaHead& head);  // one token
  // k_t, kk and qk of up to kDeltaChunk tokens; then each of the k-head's v-heads.
  void (*chunk_keys)(const DeltaHead& head, int64_t tokens, const DeltaScratch& scratch);
  void (*chunk)(const DeltaHead& head, int64_t tokens, const DeltaScratch& scratch);
};
const DeltaKernels& delta_kernels();  // follows isa_name()
const DeltaKernels* delta_avx512();   // null where not built in
const DeltaKernels* delta_avx2();
const DeltaKernels* delta_portable();

}  // namespace tailrace::cpu
