// Tiles of e4m3 keys and values as operands of mma.m16n8k16 in f16, which holds every e4m3 exactly: one conversion a pair.
// A dot product does not care in which order it takes its dims, so a lane reads what lies together: dims 16 (lane % 4) +
// 4 j + {0, 1, 2, 3} of a slice of 64 are indices 2 (lane % 4) + {0, 1, 8, 9} of step j, in queries and keys alike. Of
// values a transposed pair of bytes belongs to two neighbouring dims: one product takes the even, the next the odd ones.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda::fp8 {

// Probabilities are relative to 2^-12 of the largest seen: f16 then has full precision down to 2^-26 of it, and the sum of
// the many small ones of a long context is kept.
inline constexpr float kLift = 12;

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ uint32_t pack_half(float low, float high) { return bits_of(__floats2half2_rn(low, high)); }
__device__ __forceinline__ uint32_t low_pair(uint32_t codes) {
  return ptx::halves_of_e4m3(static_cast<uint16_t>(codes));
}
__device__ __forceinline__ uint32_t high_pair(uint32_t codes) {
  return ptx::halves_of_e4m3(static_cast<uint16_t>(codes >> 16));
}

// A pair of bf16 as f16, exact from 2^-14 on; what is too large becomes the largest.
__device__ __forceinline__ uint32_t halves_of_bf16(uint32_t pair) {
  const __half2 most = __float2half2_rn(65504.0f);
  const __half2 v = __floats2half2_rn(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return bits_of(__hmax2(__hmin2(v, most), __hneg2(most)));
}

// Fragments of the queries' slice at `q_base`, of rows lane / 4 and, of 16 ROWS, lane / 4 + 8; bf16, `stride` bytes a row.
template <int ROWS>
__device__ __forceinline__ void load_queries(uint32_t (*a)[4], uint32_t q_base, int stride, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t at = q_base + (lane / 4 + 8 * h) * stride + (lane & 3) * 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (ROWS == 8 && h == 1) {  // no such heads
        a[2 * half][1] = a[2 * half][3] = a[2 * half + 1][1] = a[2 * half + 1][3] = 0;
        continue;
      }
      const uint4 v = ptx::load_shared_16(at + half * 16);
      a[2 * half][h] = halves_of_bf16(v.x), a[2 * half][2 + h] = halves_of_bf16(v.y);
      a[2 * half + 1][h] = halves_of_bf16(v.z), a[2 * half + 1][2 + h] = halves_of_bf16(v.w);
    }
  }
}

// Adds to scores [16 rows, 16 keys] what the slice of 64 dims at `keys` contributes.
__device__ __forceinline__ void add_scores(float (&low_keys)[4], float (&high_keys)[4], const uint32_t (*a)[4],
                                           uint32_t keys, int key0, int lane) {
  const uint4 low = ptx::load_shared_16(keys + swizzled_fp8(key0 + lane / 4, (lane & 3) * 16));
  const uint4 high = ptx::load_shared_16(keys + swizzled_fp8(key0 + 8 + lane / 4, (lane & 3) * 16));
  const uint32_t of_low[4] = {low.x, low.y, low.z, low.w}, of_high[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t step[4] = {a[j][0], a[j][1], a[j][2], a[j][3]};
    ptx::mma_f16(low_keys, step, low_pair(of_low[j]), high_pair(of_low[j]));
    ptx::mma_f16(high_keys, step, low_pair(of_high[j]), high_pair(of_high[j]));
  }
}

// out[N / 2] += prob V: 32 dims of 16 keys, from dim `d` of the tile at `values` on. A pair of out's fragments holds the
// even and the odd ones of 16 dims.
__device__ __forceinline__ void accumulate_32(float (*out)[4], const uint32_t (&prob)[4], uint32_t values, int d,
                                              int key0, int lane) {
  uint32_t v[4];
  ptx::ldmatrix_x4_trans(v, values + swizzled_fp8(key0 + (lane & 15), d + (lane >> 4) * 16));
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const uint32_t upper = __byte_perm(v[n], 0, 0x3120), lower = __byte_perm(v[n + 1], 0, 0x3120);
    ptx::mma_f16(out[n], prob, low_pair(upper), low_pair(lower));
    ptx::mma_f16(out[n + 1], prob, high_pair(upper), high_pair(lower));
  }
}

// Afterwards fragment n holds dim out_dim(n, lane) and the one behind it, as a fragment of bf16 does dim 8 n + 2 (lane % 4).
template <int N>
__device__ __forceinline__ void order_outputs(float (&out)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
#pragma unroll
    for (int h = 0; h < 4; h += 2) {
      const float odd = out[n + 1][h];
      out[n + 1][h] = out[n][h + 1];
      out[n][h + 1] = odd;
    }
  }
}
__device__ __forceinline__ int out_dim(int n, int lane) { return n / 2 * 16 + (lane & 3) * 4 + n % 2 * 2; }

}  // namespace tailrace::cuda::fp8
