// Cuts and draws over a whole row, for filters whose survivors do not fit in shared memory. The CTAs of a row's cluster
// share each pass: the leader (rank 0) posts a job, all take their part of the ids, the leader joins the results.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/sampler_block.cuh"

namespace tailrace::cuda::sampling {

// CTAs of the row: the grid's x extent, which is one cluster.
__device__ __forceinline__ int cluster_ctas() { return static_cast<int>(gridDim.x); }
__device__ __forceinline__ int cluster_rank() { return static_cast<int>(blockIdx.x); }

// The same object of another CTA of the cluster.
__device__ __forceinline__ ChooseShared& peer(ChooseShared& s, int rank) {
#if __CUDA_ARCH__ >= 900
  if (cluster_ctas() > 1) return *cooperative_groups::this_cluster().map_shared_rank(&s, rank);
#endif
  return s;
}

// All threads of the cluster, their writes to shared memory included.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  if (cluster_ctas() > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

inline constexpr int kBinsPerThread = kBins / kThreads;

// The bits of a composite that a level looks at; ids have 19 bits. Level 0 goes by coarse bins.
__device__ __forceinline__ int level_shift(int level) {
  return level == 1 ? 53 : level == 2 ? 42 : level == 3 ? 32 : level == 4 ? 9 : 0;
}
__device__ __forceinline__ uint32_t level_mask(int level) {
  return level <= 2 ? 0x7ff : level <= 4 ? 0x3ff : 0x1ff;
}

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

// Counts the members among [begin, end), and their mass, by their coarse bin or the level's digit, largest first.
template <bool kByMass>
__device__ void fill_bins(const Job& job, int64_t begin, int64_t end, ChooseShared& s) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.count[i] = s.low[i] = s.high[i] = 0;
  __syncthreads();
  const int shift = level_shift(job.level);
  const uint32_t mask = level_mask(job.level);
  for_each(job.row, begin, end, threadIdx.x, kThreads, [&](int64_t id, float value) {
    const uint32_t key = job.row.key<kByMass>(value);
    const uint32_t digit = static_cast<uint32_t>(composite(key, id) >> shift) & mask;
    const int bin = job.level == 0 ? coarse_bin<kByMass>(job.row, key, value) : static_cast<int>(mask - digit);
    const bool member = id < end && is_member<kByMass>(job.row, job.narrow, id, value, key);
    add_to_bin<kByMass>(member, bin, kByMass ? mass_of(__uint_as_float(key)) : 0, s);
  });
}

template <bool kByMass>
__device__ void list_members(const Job& job, int64_t begin, int64_t end, ChooseShared& leader) {
  for_each(job.row, begin, end, threadIdx.x, kThreads, [&](int64_t id, float value) {
    const uint32_t key = job.row.key<kByMass>(value);
    append(id < end && is_member<kByMass>(job.row, job.narrow, id, value, key), composite(key, id), leader);
  });
}

inline __device__ uint64_t filtered_mass(const RowView& row, const Filter& filter, int64_t id, float value) {
  const float p = row.probability(value);
  const bool kept = id < row.vocab && p >= filter.min_p && composite(value_key(value), id) >= filter.value_cut &&
                    composite(__float_as_uint(p), id) >= filter.probability_cut;
  return kept ? mass_of(p) : 0;
}

// Ids of each of `parts` equal parts of n, a multiple of a block's.
__device__ __forceinline__ int64_t part_ids(int64_t n, int parts) {
  return ((n + parts - 1) / parts + kBlock - 1) / kBlock * kBlock;
}

// Mass of each warp's part of [begin, begin + kWarps * part), up to end.
inline __device__ void sum_parts(const RowView& row, const Filter& filter, int64_t begin, int64_t end, int64_t part,
                                 ChooseShared& s) {
  const int warp = threadIdx.x >> 5;
  const int64_t from = min(end, begin + warp * part), to = min(end, from + part);
  uint64_t sum = 0;
  for_each(row, from, to, threadIdx.x & 31, 32, [&](int64_t id, float value) {
    if (id < to) sum += filtered_mass(row, filter, id, value);
  });
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) s.part_mass[warp] = sum;
}

// This CTA's part of a job.
inline __device__ void do_job(const Job& job, ChooseShared& s, ChooseShared& leader) {
  const int64_t part = part_ids(job.row.vocab, cluster_ctas() * kWarps), vocab = job.row.vocab;
  const int64_t begin = min(vocab, cluster_rank() * kWarps * part), end = min(vocab, begin + kWarps * part);
  if (job.kind == Job::kBins) {
    job.by_mass ? fill_bins<true>(job, begin, end, s) : fill_bins<false>(job, begin, end, s);
  } else if (job.kind == Job::kList) {
    job.by_mass ? list_members<true>(job, begin, end, leader) : list_members<false>(job, begin, end, leader);
  } else if (job.kind == Job::kMass) {
    sum_parts(job.row, job.filter, begin, end, part, s);
  }
}

// Leader: has the job done by all; afterwards every CTA's result may be read until the next one is posted.
inline __device__ void run_job(const Job& job, ChooseShared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.job = job, s.num_list = 0;
  cluster_sync();
  do_job(job, s, s);
  cluster_sync();
}

// The other CTAs: jobs until there are no more.
inline __device__ void serve_jobs(ChooseShared& s) {
  ChooseShared& leader = peer(s, 0);
  for (;;) {
    cluster_sync();
    const Job job = leader.job;
    if (job.kind != Job::kDone) do_job(job, s, leader);
    cluster_sync();  // a leader that left would take its memory along
    if (job.kind == Job::kDone) return;
  }
}
inline __device__ void end_jobs(ChooseShared& s) {
  if (cluster_ctas() > 1) run_job(Job{}, s);
}

// The member at which the running weight (mass, or 1 each) of the at most kCapacity members reaches `remaining`.
template <bool kByMass>
__device__ uint64_t find_member(Job job, uint64_t remaining, ChooseShared& s) {
  job.kind = Job::kList;
  run_job(job, s);
  const int n = s.num_list;
  sort_list(n, s);
  uint64_t weight[kListPerThread], sum = 0, total;
  for (int i = 0; i < kListPerThread; ++i) {
    const int at = threadIdx.x * kListPerThread + i;
    weight[i] = at < n ? (kByMass ? mass_of(list_float(s.list[at])) : 1) : 0;
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

// The bin in which the running weight of the bins of all CTAs reaches *remaining, which is then counted from its start;
// *fits: whether its members fit in the list. *remaining is `wanted`, or that share of the mass, at level 0.
template <bool kByMass>
__device__ uint32_t find_bin(int level, double wanted, uint64_t* remaining, bool* fits, ChooseShared& s) {
  static_assert(kBinsPerThread == 4);
  uint64_t weight[4] = {}, sum = 0, total;
  uint32_t count[4] = {};
#pragma unroll 4
  for (int rank = 0; rank < cluster_ctas(); ++rank) {
    const auto four = [&](const uint32_t* bins) { return reinterpret_cast<const uint4*>(bins)[threadIdx.x]; };
    const ChooseShared& from = peer(s, rank);
    const uint4 c = four(from.count);
    count[0] += c.x, count[1] += c.y, count[2] += c.z, count[3] += c.w;
    if (!kByMass) continue;
    const uint4 l = four(from.low), h = four(from.high);
    weight[0] += (static_cast<uint64_t>(h.x) << 32) + l.x, weight[1] += (static_cast<uint64_t>(h.y) << 32) + l.y;
    weight[2] += (static_cast<uint64_t>(h.z) << 32) + l.z, weight[3] += (static_cast<uint64_t>(h.w) << 32) + l.w;
  }
  for (int i = 0; i < 4; ++i) {
    if (!kByMass) weight[i] = count[i];
    sum += weight[i];
  }
  uint64_t before = scan_block(sum, s, &total);
  if (level == 0) {
    const double target = kByMass ? ceil(wanted * static_cast<double>(total)) : wanted;
    *remaining = max(uint64_t{1}, min(static_cast<uint64_t>(target), total));
  }
  for (int i = 0; i < kBinsPerThread; ++i) {
    if (before < *remaining && *remaining <= before + weight[i]) {
      s.found[0] = threadIdx.x * kBinsPerThread + i, s.found[1] = before, s.found[2] = count[i];
    }
    before += weight[i];
  }
  __syncthreads();
  *remaining -= s.found[1];
  *fits = s.found[2] <= kCapacity;
  return static_cast<uint32_t>(s.found[0]);
}

// The composite of the last token kept when the best `wanted` (kByMass: the fewest with that share of the mass) are
// kept, of those whose value composite reaches `value_cut`. It is of a value key, kByMass: of probability bits.
template <bool kByMass>
__device__ uint64_t select_cut(const RowView& row, uint64_t value_cut, double wanted, ChooseShared& s) {
  Job job{.kind = Job::kBins, .by_mass = kByMass, .row = row, .narrow = {.value_cut = value_cut}};
  uint64_t remaining = 0;
  bool fits = false;
  while (!fits) {
    run_job(job, s);
    const uint32_t bin = find_bin<kByMass>(job.level, wanted, &remaining, &fits, s);
    Narrowing& narrow = job.narrow;
    if (job.level == 0) {
      narrow.coarse_bin = static_cast<int>(bin);
    } else {
      const int shift = level_shift(job.level);
      narrow.prefix = (job.level == 1 ? 0 : narrow.prefix << (narrow.shift - shift)) | (level_mask(job.level) - bin);
      // Bits 31..19 of a composite, above those of an id, are ones.
      if (shift == 9) narrow.prefix |= (uint64_t{1} << 23) - (uint64_t{1} << 10);
      narrow.shift = shift;
    }
    ++job.level;  // the last level's bins hold one token each
  }
  return find_member<kByMass>(job, remaining, s);
}

// Below the total, whatever the rounding.
__device__ __forceinline__ uint64_t target_mass(double u, uint64_t total) {
  return min(static_cast<uint64_t>(u * static_cast<double>(total)), total - 1);
}

// The token of [begin, end) at which the running mass passes `target`, if negative u of the range's; on every thread.
inline __device__ int32_t draw_range(const RowView& row, const Filter& filter, int64_t begin, int64_t end, double u,
                                     int64_t target, ChooseShared& s) {
  const auto aim = [&](uint64_t total) {
    if (target < 0) target = static_cast<int64_t>(target_mass(u, total));
  };
  while (end - begin > kThreads * 4) {
    const int64_t part = part_ids(end - begin, kWarps);
    __syncthreads();  // part_mass may still be read
    sum_parts(row, filter, begin, end, part, s);
    __syncthreads();
    uint64_t total = 0;
    for (uint64_t w : s.part_mass) total += w;
    aim(total);
    int w = 0;
    for (; w < kWarps - 1 && target >= static_cast<int64_t>(s.part_mass[w]); ++w) target -= s.part_mass[w];
    begin += w * part;
    end = min(end, begin + part);
  }
  uint64_t weight[4] = {}, sum = 0, total;
  for_each(row, begin, end, threadIdx.x, kThreads, [&](int64_t id, float value) {
    if (id < end) sum += weight[id & 3] = filtered_mass(row, filter, id, value);
  });
  uint64_t before = scan_block(sum, s, &total);
  aim(total);
  const auto wanted = static_cast<uint64_t>(target);
  for (int i = 0; i < 4; ++i) {
    if (before <= wanted && wanted < before + weight[i]) s.id = static_cast<int32_t>(begin + threadIdx.x * 4 + i);
    before += weight[i];
  }
  __syncthreads();
  return s.id;
}

// The same over the whole row, by the cluster: all parts' masses first, then the one that the draw falls into.
inline __device__ int32_t draw_row(const RowView& row, const Filter& filter, double u, ChooseShared& s) {
  run_job({.kind = Job::kMass, .row = row, .filter = filter}, s);
  const int parts = cluster_ctas() * kWarps, mine = static_cast<int>(threadIdx.x);
  const uint64_t mass = mine < parts ? peer(s, mine / kWarps).part_mass[mine % kWarps] : 0;
  uint64_t total;
  const uint64_t before = scan_block(mass, s, &total), target = target_mass(u, total);
  if (before <= target && target < before + mass) s.found[0] = mine, s.found[1] = before;
  __syncthreads();
  const int64_t part = part_ids(row.vocab, parts), begin = min(row.vocab, static_cast<int64_t>(s.found[0]) * part);
  const auto inside = static_cast<int64_t>(target - s.found[1]);
  return draw_range(row, filter, begin, min(row.vocab, begin + part), u, inside, s);
}

}  // namespace tailrace::cuda::sampling
