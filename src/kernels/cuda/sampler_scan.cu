// The sampler's pass over the logits: processing, and statistics of chunks and blocks (mapping: sampler.cu).
#include "kernels/cuda/sampler_parts.h"

namespace tailrace::cuda::sampling {
namespace {

constexpr int kScanThreads = 256;
constexpr int kPerThread = kChunk / kScanThreads;   // in four float4, 128 ids apart
constexpr int kStopFlag = 1 << 30;

struct ScanShared {
  float values[kChunk];  // used by rows whose logits are changed
  int counts[kChunk];    // 2 * occurrences in the output, odd when in the prompt; kStopFlag: may not be chosen
  uint32_t mask[kChunk / 32];
  uint32_t warp_key[kScanThreads / 32], warp_index[kScanThreads / 32];
  float warp_total[kScanThreads / 32];
};

// Place in the chunk of a thread's j-th group of four values.
__device__ __forceinline__ int place_of(int j) {
  return (threadIdx.x >> 5) * (kChunk / (kScanThreads / 32)) + j * kBlock + (threadIdx.x & 31) * 4;
}

// Whether the row's mask follows its kv_len tokens; the same on every thread of every CTA of the row. The host writes it
// while the step runs: the mask is read after the length, and by no cached load. The row's first CTA to come asks, the others
// wait for what it tells them, in device memory: a line of host memory answers one acquiring load after the other, a
// microsecond each. A gate holds 4 * step + 1 while its CTA asks, 2 more than 4 * step: it is there, 3 more: it is not.
__device__ bool mask_is_there(const RowStateView& state, const BatchRow& r, uint64_t step) {
  bool there = false;
  if (threadIdx.x == 0) {
    auto* gate = reinterpret_cast<unsigned long long*>(state.mask_gate + r.slot);
    const unsigned long long asking = step * 4 + 1;
    unsigned long long now = asking;
    if (atomicMax(gate, asking) < asking) {
      const int32_t* at = state.mask_len + r.slot * kMaskLenStride;
      int32_t len;
      asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(len) : "l"(at) : "memory");
      now = len == r.kv_len ? asking + 1 : asking + 2;
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(gate), "l"(now) : "memory");
    } else {
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(gate) : "memory");
      } while (now == asking);
    }
    there = now == asking + 1;
  }
  return __syncthreads_or(there) != 0;
}

// What the mask allows stays above what it forbids, whatever the logits are, as the CPU's apply_mask. The words come from
// host memory: 128 bytes a request, each word once.
__device__ void mask_chunk(const RowStateView& state, const BatchRow& r, int first, int count,
                           float (&value)[kPerThread], ScanShared& shared) {
  const uint32_t* mask = state.masks + r.slot * state.mask_words + first / 32;
  for (int i = threadIdx.x; i < (count + 31) / 32; i += kScanThreads) shared.mask[i] = __ldcv(mask + i);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {
    const int place = place_of(j);  // a multiple of four: four bits of one word
    const uint32_t word = place < count ? shared.mask[place / 32] >> (place % 32) : 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& v = value[4 * j + c];
      v = place + c >= count || (word >> c & 1) == 0 ? kLowest : v > kBanned ? v : kBanned;
    }
  }
}

// Occurrences of the chunk's ids: every CTA reads the whole log, so no table over the vocabulary has to be cleared.
__device__ void count_log(const RowStateView& state, const BatchRow& r, const RowSampling& s, int first, int count,
                          ScanShared& shared) {
  const TokenId* log = state.token_log + r.slot * state.log_stride;
  const int begin = s.repetition_penalty != 1.0f ? 0 : min(s.prompt_len, r.kv_len);
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x); i < r.kv_len; i += kScanThreads) {
    const int local = log[i] - first;
    if (local < 0 || local >= count) continue;
    if (i >= s.prompt_len) {
      atomicAdd(&shared.counts[local], 2);
    } else {
      atomicOr(&shared.counts[local], 1);
    }
  }
}

// Bias, penalties and the min_len mask on the chunk [first, first + count), in the CPU's order and roundings.
__device__ void process_chunk(const RowStateView& state, const BatchRow& r, const RowSampling& s, const RowNeeds& needs,
                              int first, int count, float (&value)[kPerThread], ScanShared& shared) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    shared.values[place_of(i / 4) + i % 4] = value[i];
    shared.counts[place_of(i / 4) + i % 4] = 0;
  }
  __syncthreads();
  const int64_t bias_at = int64_t{r.slot} * kMaxLogitBias;
  for (int i = threadIdx.x; i < s.num_bias; i += kScanThreads) {
    const int local = state.bias_ids[bias_at + i] - first;
    const float bias = state.bias_values[bias_at + i];
    if (local >= 0 && local < count) atomicAdd(&shared.values[local], bias <= kBanBias ? kBanned : bias);
  }
  if (needs.penalties) count_log(state, r, s, first, count, shared);
  if (r.kv_len < s.min_len) {
    for (int i = threadIdx.x; i < s.num_stop_ids; i += kScanThreads) {
      const int local = state.stop_ids[int64_t{r.slot} * kMaxStopTokenIds + i] - first;
      if (local >= 0 && local < count) atomicOr(&shared.counts[local], kStopFlag);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int place = place_of(i / 4) + i % 4, flags = shared.counts[place], seen = flags & ~kStopFlag;
    float v = shared.values[place];
    if (seen != 0 && s.repetition_penalty != 1.0f) {
      v = v < 0 ? v * s.repetition_penalty : __fdiv_rn(v, s.repetition_penalty);
    }
    const auto output_count = static_cast<float>(seen / 2);
    if (output_count > 0) {
      v = __fsub_rn(v, __fadd_rn(s.presence_penalty, __fmul_rn(s.frequency_penalty, output_count)));
    }
    value[i] = flags & kStopFlag ? kLowest : v;
  }
}

// Largest clean value of the chunk with its lowest place, on every thread; block maxima on the way if wanted.
__device__ uint2 chunk_argmax(const float (&value)[kPerThread], uint32_t* block_keys, ScanShared& shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t best = 0, best_place = 0;
#pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {
    uint32_t group = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t key = value_key(clean(value[4 * j + c]));
      group = max(group, key);
      if (key > best) best = key, best_place = place_of(j) + c;
    }
    if (block_keys != nullptr) {
      const uint32_t key = __reduce_max_sync(kAll, group);
      if (lane == 0) block_keys[place_of(j) / kBlock] = key;
    }
  }
  const uint32_t key = __reduce_max_sync(kAll, best);
  const uint32_t place = __reduce_min_sync(kAll, best == key ? best_place : kAll);
  __syncthreads();  // the arrays may still be read from an earlier call
  if (lane == 0) shared.warp_key[warp] = key, shared.warp_index[warp] = place;
  __syncthreads();
  uint2 result = {shared.warp_key[0], shared.warp_index[0]};
  for (int w = 1; w < kScanThreads / 32; ++w) {
    if (shared.warp_key[w] > result.x) result = {shared.warp_key[w], shared.warp_index[w]};
  }
  return result;
}

// Sum of exp((x - max) * inv_t) over the chunk, on every thread.
__device__ float chunk_sum(const float (&value)[kPerThread], float max, float inv_t, ScanShared& shared) {
  float sum = 0;
#pragma unroll
  for (float v : value) sum += exp_nonpositive((clean(v) - max) * inv_t);
  sum = warp_sum(sum);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared.warp_total[threadIdx.x >> 5] = sum;
  __syncthreads();
  float total = 0;
  for (float w : shared.warp_total) total += w;
  return total;
}

__global__ void __launch_bounds__(kScanThreads, 6) scan_kernel(const SamplerParams p, const Scratch scratch) {
  __shared__ ScanShared shared;
  const int row = blockIdx.y, chunk = blockIdx.x;
  const int first = chunk * kChunk, count = static_cast<int>(min(int64_t{kChunk}, p.vocab - first));
  const float* logits = p.logits + row * p.vocab_stride + first;
  float raw[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {  // asked for before it is known whether the row samples
    const int place = place_of(j);
    float4 v = {kLowest, kLowest, kLowest, kLowest};
    if (place < count) v = *reinterpret_cast<const float4*>(logits + place);
    const float lanes[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) raw[4 * j + c] = place + c < count ? lanes[c] : kLowest;
  }
  const BatchRow r = p.rows[row];
  if (r.samples == 0) return;
  const RowSampling s = p.state.sampling[r.slot];
  const RowNeeds needs(s, r.kv_len, p.vocab);
  const int64_t at = int64_t{row} * scratch.chunks + chunk;
  ChunkStats stats = {};
  if (needs.constrained && !mask_is_there(p.state, r, *p.step)) {
    stats.argmax = kLate;
    if (threadIdx.x == 0) scratch.stats[at] = stats;
    return;
  }
  // The raw logits' statistics serve the choice as well, unless the row changes them.
  uint32_t* raw_keys = needs.processed ? (needs.tops ? scratch.raw_block_keys : nullptr)
                                       : (needs.tops || needs.filtered ? scratch.block_keys : nullptr);
  if (!needs.processed || needs.logprobs) {
    const uint2 best = chunk_argmax(raw, raw_keys == nullptr ? nullptr : raw_keys + at * kBlocksPerChunk, shared);
    stats.max = stats.raw_max = key_value(best.x);
    stats.argmax = first + static_cast<int>(best.y);
    if (needs.logprobs) stats.raw_sum = chunk_sum(raw, stats.raw_max, 1.0f, shared);
  }
  if (needs.processed) {
    process_chunk(p.state, r, s, needs, first, count, raw, shared);
    if (needs.constrained) mask_chunk(p.state, r, first, count, raw, shared);
    const uint2 best = chunk_argmax(raw, needs.filtered ? scratch.block_keys + at * kBlocksPerChunk : nullptr, shared);
    stats.max = key_value(best.x);
    stats.argmax = first + static_cast<int>(best.y);
    if (!needs.greedy) {  // the draw reads them again
    #pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {
        *reinterpret_cast<float4*>(scratch.processed + at * kChunk + place_of(j)) =
            make_float4(raw[4 * j], raw[4 * j + 1], raw[4 * j + 2], raw[4 * j + 3]);
      }
    }
  }
  if (!needs.greedy) stats.sum = chunk_sum(raw, stats.max, 1.0f / s.temperature, shared);
  if (threadIdx.x == 0) scratch.stats[at] = stats;
}

}  // namespace

cudaError_t launch_scan(const SamplerParams& params, const Scratch& scratch, cudaStream_t stream) {
  const dim3 grid(scratch.chunks, params.num_rows);
  cudaLaunchConfig_t config{.gridDim = grid, .blockDim = kScanThreads, .stream = stream};
  return cudaLaunchKernelEx(&config, scan_kernel, params, scratch);
}

}  // namespace tailrace::cuda::sampling
