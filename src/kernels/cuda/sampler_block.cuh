// What choose_kernel (sampler.cu) is made of: a CTA's shared memory, scans, sorts, the tokens of the likely blocks.
#pragma once

#include "kernels/cuda/sampler_parts.h"

namespace tailrace::cuda::sampling {

inline constexpr int kThreads = 512;                       // of choose_kernel
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kChunksPerLane = kMaxChunks / 32;
inline constexpr int kKeysPerThread = kMaxChunks * kBlocksPerChunk / kThreads;
inline constexpr int kCapacity = 2048;                     // tokens that are sorted in shared memory
inline constexpr int kListPerThread = kCapacity / kThreads;
inline constexpr int kBins = 2048;
inline constexpr int kTopPBlocks = 128;  // blocks first looked at for top_p: peaked distributions need no more
inline constexpr double kMassUnit = 17592186044416.0;      // 2^44: a vocabulary's sum fits 63 bits

// Probability x kMassUnit, rounded down, by shifting the mantissa.
__device__ __forceinline__ uint64_t mass_of(float probability) {
  const uint32_t bits = __float_as_uint(probability);
  const int shift = static_cast<int>(bits >> 23) - (127 - 21);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return shift >= 0 ? mantissa << shift : mantissa >> min(-shift, 63);
}

// The probability of a composite of probability bits.
__device__ __forceinline__ float list_float(uint64_t c) { return __uint_as_float(static_cast<uint32_t>(c >> 32)); }

// A row's logits as the filters see them.
struct RowView {
  const float* x;
  int64_t vocab;
  const uint32_t* block_keys;
  int num_blocks;
  float max, inv_t;

  __device__ float probability(float clean_value) const { return exp_nonpositive((clean_value - max) * inv_t); }
  template <bool kByMass>
  __device__ uint32_t key(float clean_value) const {
    return kByMass ? __float_as_uint(probability(clean_value)) : value_key(clean_value);
  }
};

// Tokens still in question while a cut is searched: those of one coarse bin, then those with a common composite prefix.
struct Narrowing {
  int coarse_bin = -1;
  int shift = 64;
  uint64_t prefix = 0;
  uint64_t value_cut = 0;  // and only those whose value composite reaches this
};

// What the draw over a row keeps; zeros keep everything.
struct Filter {
  uint64_t value_cut = 0, probability_cut = 0;
  float min_p = 0;
};

// A pass over a row that the CTAs of a cluster share.
struct Job {
  enum Kind { kDone, kBins, kList, kMass } kind = kDone;
  bool by_mass = false;  // composites of probability bits instead of values
  int level = 0;
  RowView row = {};
  Narrowing narrow = {};
  Filter filter = {};
};

struct ChooseShared {
  union {
    struct alignas(16) {
      uint32_t count[kBins], low[kBins], high[kBins];  // a bin's tokens, and their mass in two words
    };
    uint16_t blocks[kMaxChunks * kBlocksPerChunk];     // blocks to read
  };
  uint64_t list[kCapacity];                            // composites
  uint64_t warp_mass[kWarps];
  uint64_t part_mass[kWarps];                          // of a kMass job
  uint32_t warp_count[2][kWarps];
  Job job;
  ChunkStats stats;      // of the whole row
  double total;          // of exp((x - max) / temperature)
  double raw_total;
  int draw_chunk;        // unfiltered: where the draw falls
  float draw_max;        // its largest
  double draw_fraction;  // and how far into its sum
  int num_blocks, num_list;
  uint64_t found[3];
  int32_t id;
  bool late;             // some chunk's CTA came before the row's mask
  uint32_t out[sizeof(SampledRow) / 4];
};

// Calls f(id, clean value) for the ids of [begin, end), begin a multiple of 4; `index` takes every threads-th four. A
// warp goes through its calls together: id may be >= end, then the value is -infinity.
template <typename F>
__device__ __forceinline__ void for_each(const RowView& row, int64_t begin, int64_t end, int index, int threads, F f) {
#pragma unroll 2
  for (int64_t base = begin; base < end; base += threads * 4) {
    const int64_t id = base + index * 4;
    float4 v = {kLowest, kLowest, kLowest, kLowest};
    if (id < end) v = *reinterpret_cast<const float4*>(row.x + id);
    const float lanes[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) f(id + c, id + c < end ? clean(lanes[c]) : kLowest);
  }
}

// Sum of v over the threads before this one; *total over all.
inline __device__ uint64_t scan_block(uint64_t v, ChooseShared& s, uint64_t* total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned long long inclusive = v;
  for (int d = 1; d < 32; d <<= 1) {
    const unsigned long long before = __shfl_up_sync(kAll, inclusive, d);
    if (lane >= d) inclusive += before;
  }
  __syncthreads();  // warp_mass may still be read from an earlier call
  if (lane == 31) s.warp_mass[warp] = inclusive;
  __syncthreads();
  uint64_t before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.warp_mass[w];
    all += s.warp_mass[w];
  }
  *total = all;
  return before + inclusive - v;
}

// Composites of list[0, n) in descending order (bitonic); the rest of the list becomes zero up to a power of two.
inline __device__ void sort_list(int n, ChooseShared& s) {
  int size = 32;
  while (size < n) size <<= 1;
  __syncthreads();
  for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kThreads) s.list[i] = 0;
  __syncthreads();
  bool ordered = true;
  for (int i = threadIdx.x; i < size - 1; i += kThreads) ordered &= s.list[i] >= s.list[i + 1];
  if (__syncthreads_and(ordered)) return;
  for (int span = 2; span <= size; span <<= 1) {
    for (int stride = span >> 1; stride > 0; stride >>= 1) {
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & (stride - 1)), j = i + stride;
        const uint64_t a = s.list[i], b = s.list[j];
        if ((a < b) == ((i & span) == 0)) s.list[i] = b, s.list[j] = a;
      }
      __syncthreads();
    }
  }
}

// Adds to the list of `to` where `wanted`; counts on beyond its capacity. Whole warps call it.
__device__ __forceinline__ void append(bool wanted, uint64_t c, ChooseShared& to) {
  const unsigned votes = __ballot_sync(kAll, wanted);
  if (votes == 0) return;
  const int lane = threadIdx.x & 31;
  int at = 0;
  if (lane == 0) at = atomicAdd(&to.num_list, __popc(votes));
  at = __shfl_sync(kAll, at, 0) + __popc(votes & ((1u << lane) - 1));
  if (wanted && at < kCapacity) to.list[at] = c;
}

// A key that at least `wanted` of the row's blocks reach, and few more: so at least that many tokens do. 0: all.
inline __device__ uint32_t block_threshold(const RowView& row, int wanted, ChooseShared& s) {
  uint32_t keys[kKeysPerThread];
  for (int i = 0; i < kKeysPerThread; ++i) {
    const int block = i * kThreads + threadIdx.x;
    keys[i] = block < row.num_blocks ? row.block_keys[block] : 0;
  }
  uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | 1u << bit;
    uint32_t reached = 0;
    for (uint32_t key : keys) reached += key >= candidate;
    reached = __reduce_add_sync(kAll, reached);
    if ((threadIdx.x & 31) == 0) s.warp_count[bit & 1][threadIdx.x >> 5] = reached;
    __syncthreads();
    int total = 0;
    for (uint32_t w : s.warp_count[bit & 1]) total += w;
    if (total >= wanted) threshold = candidate;
    if (total >= wanted && total <= wanted + wanted / 4) break;
  }
  return threshold;
}

// Lists (value key, id) of all tokens that reach `threshold`; returns how many there are, perhaps more than fit.
inline __device__ int collect_blocks(const RowView& row, uint32_t threshold, ChooseShared& s) {
  if (threshold == 0 && row.vocab > kCapacity) return kCapacity + 1;
  __syncthreads();
  if (threadIdx.x == 0) s.num_blocks = s.num_list = 0;
  __syncthreads();
  for (int block = threadIdx.x; block < row.num_blocks; block += kThreads) {
    if (row.block_keys[block] >= threshold) s.blocks[atomicAdd(&s.num_blocks, 1)] = static_cast<uint16_t>(block);
  }
  __syncthreads();
  const int num_blocks = s.num_blocks;
  if (num_blocks > kCapacity) return kCapacity + 1;  // each holds at least one
  for (int b = threadIdx.x >> 5; b < num_blocks; b += kWarps) {
    const int64_t begin = int64_t{s.blocks[b]} * kBlock, end = min(begin + kBlock, row.vocab);
    for_each(row, begin, end, threadIdx.x & 31, 32, [&](int64_t id, float value) {
      const uint32_t key = value_key(value);
      append(id < end && key >= threshold, composite(key, id), s);
    });
  }
  __syncthreads();
  return s.num_list;
}

}  // namespace tailrace::cuda::sampling
