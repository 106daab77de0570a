// Sampling: token = argmax, or the first whose running sum of kept probabilities, in id order, passes u of the whole.
//
// Mapping. scan_kernel: a CTA per (row, chunk of 4096 ids) applies bias, penalties and the min_len mask, and leaves the
// chunk's largest, its sum of exponentials relative to that, and the largest of every 128 ids. choose_kernel: a CTA per
// row joins these. Unfiltered, it finds the chunk that the draw falls into and reads only that. Filtered, the largest
// of the blocks bound the k-th largest of all from below, so that few blocks are read and the survivors are sorted in
// shared memory. Where they do not fit there (flat distributions, large k, ties) the cut is found by histograms over
// the row.
// Order. Tokens are compared as 64-bit composites (key, ~id), key = the value or the probability as ordered bits: no
// ties, so the lower id wins by itself. Sums that decide a cut or a draw are integers (probability x 2^44): exact in
// any order.
// Bound: 4 bytes a logit over the read bandwidth; launches and dependent loads (about 5 us) for a few rows.
#include "kernels/cuda/sampler.h"

#include "kernels/cuda/sampler_parts.h"
#include "sampler/philox.h"

namespace tailrace::cuda {
namespace {

using namespace sampling;

constexpr int kThreads = 512;                       // of choose_kernel
constexpr int kWarps = kThreads / 32;
constexpr int kChunksPerLane = kMaxChunks / 32;
constexpr int kKeysPerThread = kMaxChunks * kBlocksPerChunk / kThreads;
constexpr int kCapacity = 2048;                     // tokens that are sorted in shared memory
constexpr int kListPerThread = kCapacity / kThreads;
constexpr int kBins = 2048;
constexpr int kTopPBlocks = 128;  // blocks first looked at for top_p: peaked distributions need no more
constexpr double kMassUnit = 17592186044416.0;      // 2^44: a vocabulary's sum fits 63 bits

// Probability x kMassUnit, rounded down, by shifting the mantissa.
__device__ __forceinline__ uint64_t mass_of(float probability) {
  const uint32_t bits = __float_as_uint(probability);
  const int shift = static_cast<int>(bits >> 23) - (127 - 21);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return shift >= 0 ? mantissa << shift : mantissa >> min(-shift, 63);
}

// The probability of a composite of probability bits.
__device__ __forceinline__ float list_float(uint64_t c) { return __uint_as_float(static_cast<uint32_t>(c >> 32)); }

struct ChooseShared {
  union {
    struct {
      uint32_t count[kBins], low[kBins], high[kBins];  // a bin's tokens, and their mass in two words
    };
    uint16_t blocks[kMaxChunks * kBlocksPerChunk];     // blocks to read
  };
  uint64_t list[kCapacity];                            // composites
  uint64_t warp_mass[kWarps];
  uint32_t warp_count[2][kWarps];
  ChunkStats stats;      // of the whole row
  double total;          // of exp((x - max) / temperature)
  double raw_total;
  int draw_chunk;        // unfiltered: where the draw falls
  double draw_fraction;  // and how far into its sum
  int num_blocks, num_list;
  uint64_t found[3];
  int32_t id;
  uint32_t out[sizeof(SampledRow) / 4];
};

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
__device__ uint64_t scan_block(uint64_t v, ChooseShared& s, uint64_t* total) {
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
__device__ void sort_list(int n, ChooseShared& s) {
  int size = 32;
  while (size < n) size <<= 1;
  __syncthreads();
  for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kThreads) s.list[i] = 0;
  __syncthreads();
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

// Adds to the list where `wanted`; counts on beyond its capacity. Whole warps call it.
__device__ __forceinline__ void append(bool wanted, uint64_t c, ChooseShared& s) {
  const unsigned votes = __ballot_sync(kAll, wanted);
  if (votes == 0) return;
  const int lane = threadIdx.x & 31;
  int at = 0;
  if (lane == 0) at = atomicAdd(&s.num_list, __popc(votes));
  at = __shfl_sync(kAll, at, 0) + __popc(votes & ((1u << lane) - 1));
  if (wanted && at < kCapacity) s.list[at] = c;
}

// A key that at least `wanted` of the row's blocks reach, and few more: so at least that many tokens do. 0: all.
__device__ uint32_t block_threshold(const RowView& row, int wanted, ChooseShared& s) {
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
__device__ int collect_blocks(const RowView& row, uint32_t threshold, ChooseShared& s) {
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

// Tokens still in question while a cut is searched: those of one coarse bin, then those with a common composite prefix.
struct Narrowing {
  int coarse_bin = -1;
  int shift = 64;
  uint64_t prefix = 0;
  uint64_t value_cut = 0;  // and only those whose value composite reaches this
};

template <bool kByMass>
__device__ __forceinline__ int coarse_bin(const RowView& row, uint32_t key, float value) {
  if (kByMass) return min((0x3f800000u - key) >> 17, kBins - 1u);  // 64 bins per halving of the probability
  return static_cast<int>(fminf((row.max - value) * 64.0f, kBins - 1.0f));
}

// Adds a token to its bin; a warp whose tokens share a bin adds once, so that ties do not serialise.
template <bool kByMass>
__device__ __forceinline__ void add_to_bin(bool member, int bin, uint64_t mass, ChooseShared& s) {
  int same = 0;
  __match_all_sync(kAll, member ? bin : -1, &same);
  uint32_t count = 1;
  if (same) {
    if (!member) return;
    count = 32;
    if (kByMass) mass = warp_sum(mass);
    member = (threadIdx.x & 31) == 0;
  }
  if (!member) return;
  atomicAdd(&s.count[bin], count);
  if (kByMass) {
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&s.low[bin], low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(&s.high[bin], high);
  }
}

template <bool kByMass>
__device__ __forceinline__ bool is_member(const RowView& row, const Narrowing& narrow, int64_t id, float value,
                                          uint32_t key) {
  return id < row.vocab && composite(value_key(value), id) >= narrow.value_cut &&
         (narrow.coarse_bin < 0 || coarse_bin<kByMass>(row, key, value) == narrow.coarse_bin) &&
         (narrow.shift == 64 || composite(key, id) >> narrow.shift == narrow.prefix);
}

// Counts the members, and their mass, by the next digit of their composites, largest first; by coarse bin at level 0.
template <bool kByMass>
__device__ void fill_bins(const RowView& row, const Narrowing& narrow, int level, int shift, uint32_t mask,
                          ChooseShared& s) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.count[i] = s.low[i] = s.high[i] = 0;
  __syncthreads();
  for_each(row, 0, row.vocab, threadIdx.x, kThreads, [&](int64_t id, float value) {
    const uint32_t key = row.key<kByMass>(value);
    const auto digit = static_cast<uint32_t>(composite(key, id) >> shift) & mask;
    const int bin = level == 0 ? coarse_bin<kByMass>(row, key, value) : static_cast<int>(mask - digit);
    add_to_bin<kByMass>(is_member<kByMass>(row, narrow, id, value, key), bin,
                        kByMass ? mass_of(__uint_as_float(key)) : 0, s);
  });
  __syncthreads();
}

// The member at which the running weight (mass, or 1 each) of the at most kCapacity members reaches `remaining`.
template <bool kByMass>
__device__ uint64_t find_member(const RowView& row, const Narrowing& narrow, uint64_t remaining, ChooseShared& s) {
  if (threadIdx.x == 0) s.num_list = 0;
  __syncthreads();
  for_each(row, 0, row.vocab, threadIdx.x, kThreads, [&](int64_t id, float value) {
    const uint32_t key = row.key<kByMass>(value);
    append(is_member<kByMass>(row, narrow, id, value, key), composite(key, id), s);
  });
  __syncthreads();
  sort_list(s.num_list, s);
  uint64_t weight[kListPerThread], sum = 0, total;
  for (int i = 0; i < kListPerThread; ++i) {
    const int at = threadIdx.x * kListPerThread + i;
    weight[i] = at < s.num_list ? (kByMass ? mass_of(list_float(s.list[at])) : 1) : 0;
    sum += weight[i];
  }
  uint64_t before = scan_block(sum, s, &total);
  for (int i = 0; i < kListPerThread; ++i) {
    if (before < remaining && remaining <= before + weight[i]) s.found[0] = s.list[threadIdx.x * kListPerThread + i];
    before += weight[i];
  }
  __syncthreads();
  return s.found[0];
}

// The composite of the last token kept when the best `wanted` (kByMass: the fewest with that share of the mass) are kept,
// of those whose value composite reaches `value_cut`. It is of a value key, kByMass: of probability bits.
template <bool kByMass>
__device__ uint64_t select_cut(const RowView& row, uint64_t value_cut, double wanted, ChooseShared& s) {
  const int shifts[] = {0, 53, 42, 32, 9, 0}, widths[] = {11, 11, 11, 10, 10, 9};  // ids have 19 bits
  Narrowing narrow{.value_cut = value_cut};
  uint64_t remaining = 0;
  for (int level = 0;; ++level) {
    const int shift = shifts[level];
    const uint32_t mask = (1u << widths[level]) - 1;
    fill_bins<kByMass>(row, narrow, level, shift, mask, s);
    constexpr int kBinsPerThread = kBins / kThreads;
    uint64_t weight[kBinsPerThread], sum = 0, total;
    for (int i = 0; i < kBinsPerThread; ++i) {
      const int bin = threadIdx.x * kBinsPerThread + i;
      weight[i] = kByMass ? static_cast<uint64_t>(s.high[bin]) << 32 | s.low[bin] : s.count[bin];
      sum += weight[i];
    }
    uint64_t before = scan_block(sum, s, &total);
    if (level == 0) {
      const double target = kByMass ? ceil(wanted * static_cast<double>(total)) : wanted;
      remaining = max(uint64_t{1}, min(static_cast<uint64_t>(target), total));
    }
    for (int i = 0; i < kBinsPerThread; ++i) {
      const int bin = threadIdx.x * kBinsPerThread + i;
      if (before < remaining && remaining <= before + weight[i]) {
        s.found[0] = bin, s.found[1] = before, s.found[2] = s.count[bin];
      }
      before += weight[i];
    }
    __syncthreads();
    const auto bin = static_cast<uint32_t>(s.found[0]);
    remaining -= s.found[1];
    const bool fits = s.found[2] <= kCapacity;
    if (level == 0) {
      narrow.coarse_bin = static_cast<int>(bin);
    } else {
      narrow.prefix = (level == 1 ? 0 : narrow.prefix << (narrow.shift - shift)) | (mask - bin);
      // Bits 31..19 of a composite, above those of an id, are ones.
      if (shift == 9) narrow.prefix |= (uint64_t{1} << 23) - (uint64_t{1} << 10);
      narrow.shift = shift;
    }
    if (fits) break;
  }
  return find_member<kByMass>(row, narrow, remaining, s);
}

// What the draw over a row keeps; zeros keep everything.
struct Filter {
  uint64_t value_cut = 0, probability_cut = 0;
  float min_p = 0;
};

// The token of [begin, end) at which the running mass passes u of the range's; on every thread.
__device__ int32_t draw_range(const RowView& row, const Filter& filter, int64_t begin, int64_t end, double u,
                              ChooseShared& s) {
  const auto weigh = [&](int64_t id, float value) -> uint64_t {
    const float p = row.probability(value);
    const bool kept = id < row.vocab && p >= filter.min_p && composite(value_key(value), id) >= filter.value_cut &&
                      composite(__float_as_uint(p), id) >= filter.probability_cut;
    return kept ? mass_of(p) : 0;
  };
  uint64_t target = 0;
  bool known = false;  // the target, from the first level's total
  const auto aim = [&](uint64_t total) {
    if (!known) target = min(static_cast<uint64_t>(u * static_cast<double>(total)), total - 1);
    known = true;
  };
  while (end - begin > kThreads * 4) {
    const int64_t part = ((end - begin + kWarps - 1) / kWarps + kBlock - 1) / kBlock * kBlock;
    const int warp = threadIdx.x >> 5;
    const int64_t part_begin = min(end, begin + warp * part), part_end = min(end, part_begin + part);
    uint64_t sum = 0;
    for_each(row, part_begin, part_end, threadIdx.x & 31, 32, [&](int64_t id, float value) {
      if (id < part_end) sum += weigh(id, value);
    });
    sum = warp_sum(sum);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) s.warp_mass[warp] = sum;
    __syncthreads();
    uint64_t total = 0;
    for (uint64_t w : s.warp_mass) total += w;
    aim(total);
    int w = 0;
    for (; w < kWarps - 1 && target >= s.warp_mass[w]; ++w) target -= s.warp_mass[w];
    begin += w * part;
    end = min(end, begin + part);
  }
  uint64_t weight[4] = {}, sum = 0, total;
  for_each(row, begin, end, threadIdx.x, kThreads, [&](int64_t id, float value) {
    if (id < end) sum += weight[id & 3] = weigh(id, value);
  });
  uint64_t before = scan_block(sum, s, &total);
  aim(total);
  for (int i = 0; i < 4; ++i) {
    if (before <= target && target < before + weight[i]) s.id = static_cast<int32_t>(begin + threadIdx.x * 4 + i);
    before += weight[i];
  }
  __syncthreads();
  return s.id;
}

// A list of (probability bits, id), descending: how many of its first tokens it takes to hold top_p of the whole (mass
// units; 0: of the list's); 0 when all do not.
__device__ int list_top_p(int n, float top_p, double whole, ChooseShared& s) {
  uint64_t weight[kListPerThread], sum = 0, total, kept_total;
  for (int i = 0; i < kListPerThread; ++i) {
    const int at = threadIdx.x * kListPerThread + i;
    weight[i] = at < n ? mass_of(list_float(s.list[at])) : 0;
    sum += weight[i];
  }
  uint64_t before = scan_block(sum, s, &total);
  const double target = static_cast<double>(top_p) * (whole > 0 ? whole : static_cast<double>(total));
  uint64_t kept = 0;
  for (int i = 0; i < kListPerThread; ++i) {
    const int at = threadIdx.x * kListPerThread + i;
    if (at < n && (at == 0 || static_cast<double>(before) < target)) ++kept;
    before += weight[i];
  }
  scan_block(kept, s, &kept_total);
  return static_cast<double>(total) < target ? 0 : static_cast<int>(kept_total);
}

// The draw over list[0, n) of (probability bits, id): in id order, those below min_p weigh nothing.
__device__ int32_t draw_list(int n, float min_p, double u, ChooseShared& s) {
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const uint64_t c = s.list[i];
    s.list[i] = c << 32 | c >> 32;
  }
  sort_list(n, s);
  uint64_t weight[kListPerThread], sum = 0, total;
  for (int i = 0; i < kListPerThread; ++i) {
    const int at = threadIdx.x * kListPerThread + i;
    const float p = at < n ? __uint_as_float(static_cast<uint32_t>(s.list[at])) : 0.0f;
    weight[i] = p >= min_p ? mass_of(p) : 0;
    sum += weight[i];
  }
  uint64_t before = scan_block(sum, s, &total);
  const uint64_t target = min(static_cast<uint64_t>(u * static_cast<double>(total)), total - 1);
  for (int i = 0; i < kListPerThread; ++i) {
    if (before <= target && target < before + weight[i]) {
      s.id = static_cast<int32_t>(~static_cast<uint32_t>(s.list[threadIdx.x * kListPerThread + i] >> 32));
    }
    before += weight[i];
  }
  __syncthreads();
  return s.id;
}

// (value key, id) -> (probability bits, id) in list[0, n), in descending order again.
__device__ void list_probabilities(const RowView& row, int n, ChooseShared& s) {
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const uint64_t c = s.list[i];
    s.list[i] = composite(row.key<true>(key_value(static_cast<uint32_t>(c >> 32))), composite_id(c));
  }
  sort_list(n, s);
}

__device__ int32_t choose_filtered(const RowView& row, const RowSampling& rs, const RowNeeds& needs, double u,
                                   ChooseShared& s) {
  uint32_t threshold;
  if (needs.top_k || needs.top_p) {
    threshold = block_threshold(row, needs.top_k ? rs.top_k : kTopPBlocks, s);
  } else {  // a little below the value whose probability is min_p
    threshold = value_key(clean(row.max + (logf(rs.min_p) - 1e-3f) * rs.temperature - fabsf(row.max) * 1e-6f));
  }
  int n = collect_blocks(row, threshold, s);
  if (n <= kCapacity) {
    if (needs.top_k) {
      sort_list(n, s);
      n = min(n, rs.top_k);
    }
    list_probabilities(row, n, s);
    if (!needs.top_p) return draw_list(n, rs.min_p, u, s);
    n = list_top_p(n, rs.top_p, needs.top_k ? 0 : s.total * kMassUnit, s);
    // A token that is not listed weighs no more than the threshold does: the cut has to lie clearly above it.
    const bool complete = n > 0 && (needs.top_k || threshold == 0 ||
                                    list_float(s.list[n - 1]) > row.probability(key_value(threshold)) * 1.00001f);
    if (complete) return draw_list(n, rs.min_p, u, s);
  }
  Filter filter{.min_p = rs.min_p};
  if (needs.top_k) filter.value_cut = select_cut<false>(row, 0, rs.top_k, s);
  if (needs.top_p) filter.probability_cut = select_cut<true>(row, filter.value_cut, rs.top_p, s);
  return draw_range(row, filter, 0, row.vocab, u, s);
}

// Joins the chunks' statistics and, for an unfiltered draw, finds its chunk; the first warp's work.
__device__ void join_chunks(const ChunkStats* stats, int chunks, float inv_t, double u, ChooseShared& s) {
  const int lane = threadIdx.x;
  ChunkStats mine[kChunksPerLane];
  uint32_t key = 0, raw_key = 0, arg = kAll;
  for (int i = 0; i < kChunksPerLane; ++i) {
    const int chunk = lane * kChunksPerLane + i;
    mine[i] = chunk < chunks ? stats[chunk] : ChunkStats{kLowest, 0, 0, kLowest, 0};
    if (value_key(mine[i].max) > key) key = value_key(mine[i].max), arg = mine[i].argmax;
    raw_key = max(raw_key, value_key(mine[i].raw_max));
  }
  const uint32_t best = __reduce_max_sync(kAll, key), raw_best = __reduce_max_sync(kAll, raw_key);
  arg = __reduce_min_sync(kAll, key == best ? arg : kAll);
  const float max = key_value(best), raw_max = key_value(raw_best);
  double weight[kChunksPerLane], sum = 0, raw_sum = 0;
  for (int i = 0; i < kChunksPerLane; ++i) {
    weight[i] = static_cast<double>(mine[i].sum) * exp_nonpositive((mine[i].max - max) * inv_t);
    sum += weight[i];
    raw_sum += static_cast<double>(mine[i].raw_sum) * exp_nonpositive(mine[i].raw_max - raw_max);
  }
  double inclusive = sum;
  for (int d = 1; d < 32; d <<= 1) {
    const double before = __shfl_up_sync(kAll, inclusive, d);
    if (lane >= d) inclusive += before;
  }
  const double total = __shfl_sync(kAll, inclusive, 31), target = u * total;
  raw_sum = warp_sum(raw_sum);
  double before = __shfl_up_sync(kAll, inclusive, 1);
  if (lane == 0) before = 0;
  // The first chunk that passes the target; rounding may leave none, then the last that weighs anything.
  unsigned first = kAll, last = 0;
  double fraction = 0;
  for (int i = 0; i < kChunksPerLane; ++i) {
    const unsigned chunk = lane * kChunksPerLane + i;
    if (weight[i] > 0) last = chunk;
    if (first == kAll && weight[i] > 0 && before + weight[i] > target) {
      first = chunk;
      fraction = fmax(0.0, (target - before) / weight[i]);
    }
    before += weight[i];
  }
  const unsigned found = __reduce_min_sync(kAll, first), heaviest_last = __reduce_max_sync(kAll, last);
  if (found != kAll && found == first) s.draw_chunk = found, s.draw_fraction = fraction;
  if (lane == 0) {
    if (found == kAll) s.draw_chunk = heaviest_last, s.draw_fraction = 1.0;
    s.stats = {max, static_cast<int32_t>(arg), 0, raw_max, 0};
    s.total = total, s.raw_total = raw_sum;
  }
}

// log-softmax of the raw logits at the chosen token and at the largest, into the words of the result.
__device__ void write_logprobs(const RowView& raw, int32_t id, int wanted, ChooseShared& s) {
  const double log_sum = raw.max + log(s.raw_total);
  const auto logprob = [&](float clean_value) {
    const auto value = static_cast<float>(clean_value - log_sum);
    return value > kMinLogprob ? value : kMinLogprob;  // also when all logits are -infinity
  };
  if (threadIdx.x == 0) s.out[1] = __float_as_uint(logprob(clean(raw.x[id])));
  if (wanted == 0) return;
  int n = collect_blocks(raw, block_threshold(raw, wanted, s), s);
  if (n > kCapacity) {
    const uint64_t cut = select_cut<false>(raw, 0, wanted, s);
    __syncthreads();
    if (threadIdx.x == 0) s.num_list = 0;
    __syncthreads();
    for_each(raw, 0, raw.vocab, threadIdx.x, kThreads, [&](int64_t i, float value) {
      const uint64_t c = composite(value_key(value), i);
      append(i < raw.vocab && c >= cut, c, s);
    });
    n = wanted;
  }
  sort_list(n, s);
  for (int i = threadIdx.x; i < wanted; i += kThreads) {
    s.out[3 + 2 * i] = static_cast<uint32_t>(composite_id(s.list[i]));
    s.out[4 + 2 * i] = __float_as_uint(logprob(key_value(static_cast<uint32_t>(s.list[i] >> 32))));
  }
}

__global__ void __launch_bounds__(kThreads, 1) choose_kernel(const SamplerParams p, const Scratch scratch) {
  __shared__ ChooseShared s;
  const int row = blockIdx.x;
  const BatchRow r = p.rows[row];
  if (r.samples == 0) return;
  const RowSampling rs = p.state.sampling[r.slot];
  const RowNeeds needs(rs, r.kv_len, p.vocab);
  const float inv_t = needs.greedy ? 1.0f : 1.0f / rs.temperature;
  const double u = uniform_draw(rs.seed, rs.choice_index, static_cast<uint32_t>(r.kv_len));
  const int64_t at = int64_t{row} * scratch.chunks;
  if (threadIdx.x < 32) join_chunks(scratch.stats + at, scratch.chunks, inv_t, u, s);
  __syncthreads();
  const float* logits = p.logits + row * p.vocab_stride;
  const int num_blocks = scratch.chunks * kBlocksPerChunk;
  const uint32_t* raw_keys = needs.processed ? scratch.raw_block_keys : scratch.block_keys;
  const RowView raw{logits, p.vocab, raw_keys + at * kBlocksPerChunk, num_blocks, s.stats.raw_max, 1.0f};
  RowView view{needs.processed ? scratch.processed + at * kChunk : logits, p.vocab,
               scratch.block_keys + at * kBlocksPerChunk, num_blocks, s.stats.max, inv_t};
  int32_t id = s.stats.argmax;
  if (!needs.greedy) {
    if (view.max == kLowest) {
      id = 0;
    } else if (needs.filtered) {
      id = choose_filtered(view, rs, needs, u, s);
    } else {  // relative to the chunk's own largest, as its sum is
      const int64_t begin = int64_t{s.draw_chunk} * kChunk;
      view.max = scratch.stats[at + s.draw_chunk].max;
      id = draw_range(view, Filter{}, begin, min(begin + kChunk, p.vocab), s.draw_fraction, s);
    }
  }
  const int num_top = static_cast<int>(min(int64_t{max(0, min(rs.num_top_logprobs, kMaxTopLogprobs))}, p.vocab));
  if (threadIdx.x == 0) s.out[0] = id, s.out[1] = 0, s.out[2] = num_top;
  if (needs.logprobs) write_logprobs(raw, id, num_top, s);
  __syncthreads();
  const auto slot = static_cast<int64_t>(*p.step % static_cast<uint64_t>(p.ring));
  auto* out = reinterpret_cast<uint32_t*>(p.sampled_ring + slot * p.ring_stride + row);
  if (threadIdx.x < 3 + 2 * num_top) out[threadIdx.x] = s.out[threadIdx.x];
  if (threadIdx.x == 0 && r.kv_len < p.state.log_stride) {
    p.state.token_log[r.slot * p.state.log_stride + r.kv_len] = id;
  }
}

}  // namespace

size_t sampler_scratch_bytes(int max_rows, int64_t vocab) { return Scratch(nullptr, max_rows, vocab).bytes; }

cudaError_t run_sampler(const SamplerParams& p, cudaStream_t stream) {
  if (p.vocab < 1 || p.vocab > kMaxSampledVocab || p.vocab_stride < p.vocab || p.vocab_stride % 4 != 0 ||
      p.num_rows < 0 || p.num_rows > 65535 || p.ring < 1 || p.ring_stride < p.num_rows) {
    return cudaErrorInvalidValue;
  }
  if (p.num_rows == 0) return cudaSuccess;
  const Scratch scratch(p.scratch, p.num_rows, p.vocab);
  const cudaError_t error = launch_scan(p, scratch, stream);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t choose{.gridDim = p.num_rows, .blockDim = kThreads, .stream = stream};
  return cudaLaunchKernelEx(&choose, choose_kernel, p, scratch);
}

}  // namespace tailrace::cuda
