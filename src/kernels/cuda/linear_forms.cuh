// How projections read stored weights (words of a row to pairs for the tensor cores) and what they do with finished sums: shared
// by the kernels for few tokens and for more.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/linear_decode.h"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ __half2 halves_of(uint32_t v) { return *reinterpret_cast<const __half2*>(&v); }
// A pair of bf16 as halves, divided by kHalfFactor.
__device__ __forceinline__ uint32_t half_pair(uint32_t pair) {
  return bits_of(__floats2half2_rn(__uint_as_float(pair << 16) * (1 / kHalfFactor),
                                   __uint_as_float(pair & 0xffff0000u) * (1 / kHalfFactor)));
}

// kValues: of 16 bytes. word(v, d, m, w): the values of 4 bytes of a row, as pairs; d and m belong to the integer forms.
template <WeightForm F>
struct Form;

template <>
struct Form<WeightForm::kBf16> {
  static constexpr int kValues = 8;
  static constexpr bool kHalf = false;
  static constexpr float kFactor = 1;  // that a pair's values are too small by
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols * 2; }
  static __host__ __device__ constexpr int scale_bytes(int) { return 0; }
  static __device__ __forceinline__ void word(uint32_t v, __half2, __half2, uint32_t* w) { w[0] = v; }
};

template <>
struct Form<WeightForm::kF16> : Form<WeightForm::kBf16> {
  static constexpr bool kHalf = true;
};

template <>
struct Form<WeightForm::kFp8> {
  static constexpr int kValues = 16;
  static constexpr bool kHalf = true;
  static constexpr float kFactor = 1;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols; }
  static __host__ __device__ constexpr int scale_bytes(int) { return 0; }
  static __device__ __forceinline__ void word(uint32_t v, __half2, __half2, uint32_t* w) {
    w[0] = ptx::halves_of_e4m3(static_cast<uint16_t>(v));
    w[1] = ptx::halves_of_e4m3(static_cast<uint16_t>(v >> 16));
  }
};

template <>
struct Form<WeightForm::kInt4> {
  static constexpr int kValues = 32;
  static constexpr bool kHalf = true;
  static constexpr float kFactor = 1;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols / 2; }
  static __host__ __device__ constexpr int scale_bytes(int cols) { return cols / 32 * 4; }
  static __device__ __forceinline__ void word(uint32_t v, __half2 d, __half2 m, uint32_t* w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 q = halves_of(((v >> (4 * i)) & 0x000f000fu) | 0x64006400u);  // 1024 + q
      w[i] = bits_of(__hfma2(__hsub2(q, __float2half2_rn(1024.0f)), d, m));
    }
  }
};

template <>
struct Form<WeightForm::kNvfp4> : Form<WeightForm::kInt4> {
  static constexpr float kFactor = 16384 / kNvfp4Scale;
  static __device__ __forceinline__ void word(uint32_t v, __half2 d, __half2, uint32_t* w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // sign to bit 15, exponent and mantissa to bits 11-9: the value / 2^14
      const uint32_t t = v << (12 - 4 * i);
      w[i] = bits_of(__hmul2(halves_of((t & 0x80008000u) | (t >> 3 & 0x0e000e00u)), d));
    }
  }
};

template <>
struct Form<WeightForm::kInt8> {
  static constexpr int kValues = 16;
  static constexpr bool kHalf = true;
  static constexpr float kFactor = 1;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols; }
  static __host__ __device__ constexpr int scale_bytes(int cols) { return cols / 32 * 8; }
  static __device__ __forceinline__ void word(uint32_t v, __half2 d, __half2 m, uint32_t* w) {
    v ^= 0x80808080u;  // q + 128
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 q = halves_of(__byte_perm(v, 0x64646464u, i == 0 ? 0x4140 : 0x4342));  // 1024 + 128 + q
      w[i] = bits_of(__hfma2(__hsub2(q, __float2half2_rn(1152.0f)), d, m));
    }
  }
};

// ---- Finished sums -----------------------------------------------------------------------------------------------

// A row's scale and bias: y = scale * sum + bias.
struct RowConstants {
  float scale = 1, bias = 0;
  __device__ __forceinline__ RowConstants(const Matrix& m, int row) {
    if (m.row_scale != nullptr) scale = m.row_scale[row];
    if (m.bias != nullptr) bias = m.bias[row];
  }
  __device__ __forceinline__ RowConstants() {}
  __device__ __forceinline__ float operator()(float sum) const { return scale * sum + bias; }
};

// What a token's sums are multiplied by so that its norm is applied; total: its sum of squares.
__device__ __forceinline__ float norm_factor(const LinearParams& p, float total) {
  return rsqrtf(total / static_cast<float>(p.matrix[0].cols) + p.eps);
}

__device__ __forceinline__ float capped(const LinearParams& p, float y) {
  return p.softcap > 0 ? p.softcap * tanhf(y / p.softcap) : y;
}

}  // namespace tailrace::cuda
