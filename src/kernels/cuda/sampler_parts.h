// What the sampler's two kernels share: the scratch between them, ordered keys and the exponential.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "kernels/cuda/sampler.h"
#include "sampler/sampler.h"

namespace tailrace::cuda::sampling {

inline constexpr int kChunk = 4096;                        // ids of a scan CTA
inline constexpr int kBlock = 128;                         // ids that share a block maximum: a warp's float4 load
inline constexpr int kBlocksPerChunk = kChunk / kBlock;
inline constexpr int kMaxChunks = kMaxSampledVocab / kChunk;
inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr float kLowest = -HUGE_VALF;
inline constexpr int32_t kLate = -1;  // a chunk's argmax: its CTA came before the row's mask

struct ChunkStats {
  float max;         // of clean processed logits
  int32_t argmax;
  float sum;         // of exp((x - max) / temperature)
  float raw_max;     // the same of the raw logits at temperature 1
  float raw_sum;
};

struct Scratch {
  ChunkStats* stats;         // [rows][chunks]
  uint32_t* block_keys;      // [rows][chunks * kBlocksPerChunk] ordered bits of the block maxima
  uint32_t* raw_block_keys;  // the same of the raw logits, where these differ
  float* processed;          // [rows][chunks * kChunk], of rows whose logits are changed
  int chunks;
  size_t bytes;

  Scratch(void* base, int rows, int64_t vocab) : chunks(static_cast<int>((vocab + kChunk - 1) / kChunk)) {
    ArenaCursor arena(base);
    const int64_t total = int64_t{rows} * chunks;
    stats = arena.take<ChunkStats>(total);
    block_keys = arena.take<uint32_t>(total * kBlocksPerChunk);
    raw_block_keys = arena.take<uint32_t>(total * kBlocksPerChunk);
    processed = arena.take<float>(total * kChunk);
    bytes = arena.bytes();
  }
};

// What a row asks for; the same in both kernels.
struct RowNeeds {
  bool penalties, constrained, processed, greedy, top_k, top_p, filtered, logprobs, tops;

  __device__ RowNeeds(const RowSampling& s, int kv_len, int64_t vocab) {
    penalties = s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f;
    constrained = s.constrained != 0;
    processed = penalties || constrained || s.num_bias > 0 || (s.num_stop_ids > 0 && kv_len < s.min_len);
    greedy = !(s.temperature > kGreedyTemperature) || s.top_k == 1;
    top_k = !greedy && s.top_k > 0 && s.top_k < vocab;
    top_p = !greedy && s.top_p < 1.0f;
    filtered = top_k || top_p || (!greedy && s.min_p > 0);
    logprobs = s.num_top_logprobs >= 0;
    tops = s.num_top_logprobs > 0;
  }
};

// NaN -> -infinity, +infinity -> largest finite, as the CPU's clean_logit; -0 -> 0, since keys compare bits.
__device__ __forceinline__ float clean(float x) {
  return x == x ? __fadd_rn(fminf(x, FLT_MAX), 0.0f) : kLowest;
}

// Larger floats have larger keys.
__device__ __forceinline__ uint32_t value_key(float clean_value) {
  const uint32_t bits = __float_as_uint(clean_value);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ uint64_t composite(uint32_t key, int64_t id) {
  return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t composite_id(uint64_t c) { return static_cast<int32_t>(~static_cast<uint32_t>(c)); }

// exp for x <= 0 and 0 below -87 or for NaN: the CPU's polynomial (vocab_ops.cpp) with its contractions, so that equal
// probabilities there are equal here and ties fall alike.
__device__ __forceinline__ float exp_nonpositive(float x) {
  const float clamped = x > -87.0f ? x : -87.0f;
  const float k = floorf(fmaf(clamped, 1.44269504f, 0.5f));
  const float r = fmaf(k, 2.12194440e-4f, fmaf(-k, 0.693359375f, clamped));
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p * r, r, r) + 1.0f;
  const float scale = __int_as_float((static_cast<int>(k) + 127) << 23);
  return x > -87.0f ? p * scale : 0.0f;
}

__device__ __forceinline__ float warp_sum(float v) {
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(kAll, v, d);
  return v;
}
__device__ __forceinline__ double warp_sum(double v) {
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(kAll, v, d);
  return v;
}
__device__ __forceinline__ uint64_t warp_sum(uint64_t v) {
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(kAll, static_cast<unsigned long long>(v), d);
  return v;
}

// Fills scratch for every row that samples: one pass over the logits.
cudaError_t launch_scan(const SamplerParams& params, const Scratch& scratch, cudaStream_t stream);

}  // namespace tailrace::cuda::sampling
