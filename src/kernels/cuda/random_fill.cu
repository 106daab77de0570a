// Random packed weights. A thread writes 16 bytes at a time; 64-bit word i of the matrix's random bits is
// mix(mix(seed) + (i + 1) * golden ratio), the SplitMix64 generator entered at any place. Two normals come from one
// word (Box and Muller, by approximate functions). Bound: bytes written / HBM bandwidth, or special functions (two a
// value).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/random_fill.h"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 256, kMaxBlocks = 4096;
constexpr float kE2m1Deviation = 2.93f;         // of all sixteen codes, equally likely
constexpr float kInt4Deviation = 4.6097722f;   // of 0..15, equally likely: sqrt((16^2 - 1) / 12)
constexpr float kInt8Deviation = 73.9003156f;  // of -128..127
constexpr float kScaleSpread = 1.0103630f;     // root mean square of a factor of 0.75 to 1.25: sqrt(1 + 0.5^2 / 12)

__host__ __device__ inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
__device__ __forceinline__ uint64_t word(uint64_t key, int64_t i) {
  return mix(key + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u);
}

__device__ __forceinline__ float2 normals(uint64_t bits, float deviation) {
  // u in (0, 1]: its logarithm is finite, and the largest of all normals is 6.7 deviations.
  const float u = (static_cast<float>(static_cast<uint32_t>(bits)) + 1.0f) * 0x1p-32f;
  const float turn = static_cast<float>(static_cast<uint32_t>(bits >> 32)) * (6.2831853f * 0x1p-32f);
  const float radius = sqrtf(fmaxf(0.0f, -2.0f * __logf(u))) * deviation;
  return {radius * __cosf(turn), radius * __sinf(turn)};
}

// Word j of four in a piece of 16 bytes.
template <WeightForm F>
__device__ __forceinline__ uint32_t values(uint64_t key, int64_t piece, int j, float deviation) {
  if constexpr (F == WeightForm::kBf16) {
    const float2 n = normals(word(key, piece * 4 + j), deviation);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(n.x, n.y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else if constexpr (F == WeightForm::kF16) {
    const float2 n = normals(word(key, piece * 4 + j), deviation);
    const auto bounded = [](float v) { return fminf(fmaxf(v, -65504.0f), 65504.0f); };
    const __half2 pair = __floats2half2_rn(bounded(n.x), bounded(n.y));
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else if constexpr (F == WeightForm::kFp8) {
    const auto pair = [&](int64_t i) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(normals(word(key, i), deviation), __NV_SATFINITE, __NV_E4M3);
    };
    return pair(piece * 8 + 2 * j) | pair(piece * 8 + 2 * j + 1) << 16;
  } else {  // codes: every bit pattern
    return static_cast<uint32_t>(word(key, piece * 2 + j / 2) >> 32 * (j % 2));
  }
}

// d of the 16 (kInt8) or 32 values that draw from `bits`, as the half that is stored.
__device__ __forceinline__ float scale(uint32_t bits, float d) {
  return __half2float(__float2half_rn(d * (0.75f + static_cast<float>(bits & 0xffff) * (0.5f / 65535.0f))));
}
__device__ __forceinline__ uint32_t halves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Bytes [16 piece, 16 piece + 16) of a row of scales; zero behind the last block. The codes' mean is taken out by m.
template <WeightForm F>
__device__ uint4 scales(uint64_t key, int64_t first_word, int blocks, int piece, float d) {
  uint32_t out[4] = {};
  if constexpr (F == WeightForm::kInt4) {
    for (int j = 0; j < 4 && piece * 4 + j < blocks; ++j) {
      const float s = scale(static_cast<uint32_t>(word(key, first_word + piece * 4 + j)), d);
      out[j] = halves(s, -7.5f * s);
    }
  } else if constexpr (F == WeightForm::kNvfp4) {  // one byte's worth of a scale, as the file has it, is enough
    for (int j = 0; j < 4 && piece * 4 + j < blocks; ++j) {
      const uint64_t bits = word(key, first_word + piece * 4 + j);
      out[j] = halves(scale(static_cast<uint32_t>(bits), d * kNvfp4Scale), scale(static_cast<uint32_t>(bits >> 32), d * kNvfp4Scale));
    }
  } else {
    for (int j = 0; j < 2 && piece * 2 + j < blocks; ++j) {
      const uint64_t bits = word(key, first_word + piece * 2 + j);
      const float low = scale(static_cast<uint32_t>(bits), d), high = scale(static_cast<uint32_t>(bits >> 32), d);
      out[2 * j] = halves(low, high), out[2 * j + 1] = halves(0.25f * (low + high), 0.0f);
    }
  }
  return {out[0], out[1], out[2], out[3]};
}

struct Fill {
  uint4* out;
  int64_t value_pieces, scale_pieces;  // of 16 bytes
  int row_pieces, blocks;              // of a row of scales
  uint64_t key;
  float deviation, d;
};

template <WeightForm F>
__global__ void __launch_bounds__(kThreads) fill_kernel(Fill p) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.value_pieces + p.scale_pieces; i += stride) {
    if (i < p.value_pieces) {
      p.out[i] = {values<F>(p.key, i, 0, p.deviation), values<F>(p.key, i, 1, p.deviation),
                  values<F>(p.key, i, 2, p.deviation), values<F>(p.key, i, 3, p.deviation)};
    } else if constexpr (four_bits(F) || F == WeightForm::kInt8) {
      const int64_t at = i - p.value_pieces, row = at / p.row_pieces;
      // Behind the words that the codes drew, two for each of their pieces.
      const int64_t first_word = p.value_pieces * 2 + row * p.blocks;
      p.out[i] = scales<F>(p.key, first_word, p.blocks, static_cast<int>(at % p.row_pieces), p.d);
    }
  }
}

// All units alike: codes of every bit pattern, then bytes of scales, all the same.
__global__ void __launch_bounds__(kThreads)
    fill_e2m1_kernel(uint4* out, int64_t pieces, int unit_pieces, uint64_t key, uint32_t scales) {
  constexpr int kValuePieces = kFourBitUnitValues / 16;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pieces; i += stride) {
    if (i % unit_pieces >= kValuePieces) {
      out[i] = {scales, scales, scales, scales};
    } else {
      const uint64_t low = word(key, 2 * i), high = word(key, 2 * i + 1);
      out[i] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                static_cast<uint32_t>(high >> 32)};
    }
  }
}

template <WeightForm F>
cudaError_t launch(const Fill& p, cudaStream_t stream) {
  const int64_t wanted = (p.value_pieces + p.scale_pieces + kThreads - 1) / kThreads;
  fill_kernel<F><<<static_cast<int>(std::min<int64_t>(wanted, kMaxBlocks)), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t fill_random(WeightForm form, int64_t rows, int64_t cols, uint64_t seed, float deviation, void* packed,
                        cudaStream_t stream) {
  if (rows < 0 || cols < 0 || cols % 32 != 0 || cols > INT32_MAX) return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  const float codes = form == WeightForm::kInt4 ? kInt4Deviation : form == WeightForm::kNvfp4 ? kE2m1Deviation : kInt8Deviation;
  const Fill p = {.out = static_cast<uint4*>(packed),
                  .value_pieces = scales_offset(form, rows, cols) / 16,
                  .scale_pieces = rows * scale_row_bytes(form, cols) / 16,
                  .row_pieces = static_cast<int>(scale_row_bytes(form, cols) / 16),
                  .blocks = static_cast<int>(cols / 32),
                  .key = mix(seed + 0x9e3779b97f4a7c15u),
                  .deviation = deviation,
                  .d = deviation / (codes * kScaleSpread)};
  switch (form) {
    case WeightForm::kBf16: return launch<WeightForm::kBf16>(p, stream);
    case WeightForm::kF16: return launch<WeightForm::kF16>(p, stream);
    case WeightForm::kFp8: return launch<WeightForm::kFp8>(p, stream);
    case WeightForm::kInt4: return launch<WeightForm::kInt4>(p, stream);
    case WeightForm::kNvfp4: return launch<WeightForm::kNvfp4>(p, stream);
    case WeightForm::kInt8: return launch<WeightForm::kInt8>(p, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t fill_random_expert(ExpertForm form, int64_t rows, int64_t cols, uint64_t seed, float deviation,
                               void* packed, cudaStream_t stream) {
  if (rows <= 0 || cols <= 0) return cudaErrorInvalidValue;
  const int64_t bytes = expert_matrix_bytes(form, rows, cols);
  if (form == ExpertForm::kBf16 || form == ExpertForm::kFp8) {  // every place of a unit is a value
    const WeightForm plain = form == ExpertForm::kBf16 ? WeightForm::kBf16 : WeightForm::kFp8;
    return fill_random(plain, bytes / value_row_bytes(plain, kUnitCols), kUnitCols, seed, deviation, packed, stream);
  }
  // The nearest power of two.
  const int exponent = static_cast<int>(lroundf(log2f(deviation / kE2m1Deviation)));
  const auto scale = form == ExpertForm::kMxfp4
                         ? static_cast<uint32_t>(std::clamp(exponent + 127, 1, kMxfp4MostScale) + kMxfp4ScaleBias)
                         : static_cast<uint32_t>(std::clamp(exponent, -9, 8) + 9) * 8;
  const int64_t pieces = bytes / 16, wanted = (pieces + kThreads - 1) / kThreads;
  fill_e2m1_kernel<<<static_cast<int>(std::min<int64_t>(wanted, kMaxBlocks)), kThreads, 0, stream>>>(
      static_cast<uint4*>(packed), pieces, expert_unit_bytes(form) / 16, mix(seed + 0x9e3779b97f4a7c15u), scale * 0x01010101u);
  return cudaGetLastError();
}

}  // namespace tailrace::cuda
