// Sampling: token = argmax, or the first whose running sum of kept probabilities, in id order, passes u of the whole.
//
// Mapping. scan_kernel: a CTA per (row, chunk of 4096 ids) applies bias, penalties and the min_len mask, and leaves the
// chunk's largest, its sum of exponentials relative to that, and the largest of every 128 ids. choose_kernel: a CTA per
// row joins these. Unfiltered, it finds the chunk that the draw falls into and reads only that. Filtered, the largest
// of the blocks bound the k-th largest of all from below, so that few blocks are read and the survivors are sorted in
// shared memory. Where they do not fit there (flat distributions, large k, ties) the cut is found by histograms over
// the row.
// Masks. A constrained row's lies in pinned memory, with the length that it belongs to. A row whose scan came before it is
// late: it gets no token, and its stop flag.
// Order. Tokens are compared as 64-bit composites (key, ~id), key = the value or the probability as ordered bits: no
// ties, so the lower id wins by itself. Sums that decide a cut or a draw are integers (probability x 2^44): exact in
// any order.
// Bound: 4 bytes a logit over the read bandwidth; launches and dependent loads (about 5 us) for a few rows.
#include "kernels/cuda/sampler.h"

#include <climits>

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/sampler_cut.cuh"
#include "sampler/philox.h"

namespace tailrace::cuda {
namespace {

using namespace sampling;

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
  const bool by_mass = needs.top_p && !needs.top_k;
  const uint32_t least = needs.constrained ? value_key(kBanned) : 0;  // what a mask forbids lies below
  // Long tails get a second chance: with 5/8 of the blocks about as many tokens as there are blocks are listed.
  const int tail_blocks = row.vocab <= kCapacity ? INT_MAX / 2 : static_cast<int>(row.vocab / kBlock * 5 / 8);
  for (const int top_p_blocks : {row.vocab <= kCapacity ? tail_blocks : min(kTopPBlocks, tail_blocks), tail_blocks}) {
    uint32_t threshold;
    if (needs.top_k || needs.top_p) {
      threshold = block_threshold(row, needs.top_k ? rs.top_k : top_p_blocks, s);
    } else {  // a little below the value whose probability is min_p
      threshold = value_key(clean(row.max + (logf(rs.min_p) - 1e-3f) * rs.temperature - fabsf(row.max) * 1e-6f));
    }
    threshold = max(threshold, least);
    int n = collect_blocks(row, threshold, s);
    if (n > kCapacity) break;
    if (needs.top_k) {
      sort_list(n, s);
      n = min(n, rs.top_k);
    }
    list_probabilities(row, n, s);
    if (!needs.top_p) return draw_list(n, rs.min_p, u, s);
    n = list_top_p(n, rs.top_p, by_mass ? s.total * kMassUnit : 0, s);
    // A token that is not listed weighs no more than the threshold does: the cut has to lie clearly above it.
    const bool complete = n > 0 && (!by_mass || threshold == 0 ||
                                    list_float(s.list[n - 1]) > row.probability(key_value(threshold)) * 1.00001f);
    if (complete) return draw_list(n, rs.min_p, u, s);
  }
  Filter filter{.min_p = rs.min_p};
  if (needs.top_k) filter.value_cut = select_cut<false>(row, 0, rs.top_k, s);
  if (needs.top_p) filter.probability_cut = select_cut<true>(row, filter.value_cut, rs.top_p, s);
  return draw_row(row, filter, u, s);
}

// A lane's chunks of the row, neutral beyond its end; of use to the first warp.
__device__ __forceinline__ void load_stats(const ChunkStats* stats, int chunks, ChunkStats (&mine)[kChunksPerLane]) {
  for (int i = 0; i < kChunksPerLane; ++i) {
    const int chunk = (threadIdx.x & 31) * kChunksPerLane + i;
    mine[i] = chunk < chunks && threadIdx.x < 32 ? stats[chunk] : ChunkStats{kLowest, 0, 0, kLowest, 0};
  }
}

// Joins the chunks' statistics and, for an unfiltered draw, finds its chunk; the first warp's work.
__device__ void join_chunks(const ChunkStats (&mine)[kChunksPerLane], float inv_t, double u, ChooseShared& s) {
  const int lane = threadIdx.x;
  uint32_t key = 0, raw_key = 0, arg = kAll;
  bool late = false;
  for (int i = 0; i < kChunksPerLane; ++i) {
    late |= mine[i].argmax == kLate;
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
  const unsigned passed = __reduce_min_sync(kAll, first), last_of_all = __reduce_max_sync(kAll, last);
  const unsigned chosen = passed != kAll ? passed : last_of_all;
  for (int i = 0; i < kChunksPerLane; ++i) {
    if (lane * kChunksPerLane + i != chosen) continue;
    s.draw_chunk = static_cast<int>(chosen), s.draw_max = mine[i].max;
    s.draw_fraction = passed != kAll ? fraction : 1.0;
  }
  late = __any_sync(kAll, late) != 0;
  if (lane == 0) {
    s.late = late;
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
    run_job({.kind = Job::kList, .row = raw, .narrow = {.value_cut = cut}}, s);
    n = wanted;
  }
  sort_list(n, s);
  for (int i = threadIdx.x; i < wanted; i += kThreads) {
    s.out[3 + 2 * i] = static_cast<uint32_t>(composite_id(s.list[i]));
    s.out[4 + 2 * i] = __float_as_uint(logprob(key_value(static_cast<uint32_t>(s.list[i] >> 32))));
  }
}

// Grid (CTAs of a cluster, rows): the leader chooses, the others help with passes over the whole row.
__global__ void __launch_bounds__(kThreads, 1) choose_kernel(const SamplerParams p, const Scratch scratch) {
  __shared__ ChooseShared s;
  const int row = blockIdx.y;
  const int64_t at = int64_t{row} * scratch.chunks;
  ChunkStats mine[kChunksPerLane];
  load_stats(scratch.stats + at, scratch.chunks, mine);  // asked for before it is known whether the row samples
  const BatchRow r = p.rows[row];
  const uint64_t step = *p.step;
  const auto ring_slot = static_cast<int64_t>(step % static_cast<uint64_t>(p.ring));
  auto* out = reinterpret_cast<uint32_t*>(p.sampled_ring + ring_slot * p.ring_stride + row);
  if (r.samples == 0) {
    if (r.kv_len == 0 && cluster_rank() == 0 && threadIdx.x == 0) *out = static_cast<uint32_t>(kNoToken), __threadfence_system();
    return;
  }
  const RowSampling rs = p.state.sampling[r.slot];
  const RowNeeds needs(rs, r.kv_len, p.vocab);
  const bool may_need_help = needs.filtered || needs.tops;
  if (cluster_rank() > 0) {
    if (may_need_help) serve_jobs(s);
    return;
  }
  // This thread's stop id, where one may end the row; asked for early.
  const bool may_stop = r.kv_len >= rs.min_len && static_cast<int>(threadIdx.x) < rs.num_stop_ids;
  const TokenId stop_id = may_stop ? p.state.stop_ids[int64_t{r.slot} * kMaxStopTokenIds + threadIdx.x] : kNoToken;
  const float inv_t = needs.greedy ? 1.0f : 1.0f / rs.temperature;
  const double u = uniform_draw(rs.seed, rs.choice_index, static_cast<uint32_t>(r.kv_len));
  if (threadIdx.x < 32) join_chunks(mine, inv_t, u, s);
  __syncthreads();
  if (s.late) {
    if (threadIdx.x == 0) {
      *out = static_cast<uint32_t>(kNoToken), __threadfence_system();
      p.state.stopped[r.slot] = 1;
    }
    if (may_need_help) end_jobs(s);
    return;
  }
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
      view.max = s.draw_max;
      id = draw_range(view, Filter{}, begin, min(begin + kChunk, p.vocab), s.draw_fraction, -1, s);
    }
  }
  const int num_top = static_cast<int>(min(int64_t{max(0, min(rs.num_top_logprobs, kMaxTopLogprobs))}, p.vocab));
  if (threadIdx.x == 0) s.out[0] = id, s.out[1] = 0, s.out[2] = num_top;
  if (needs.logprobs) write_logprobs(raw, id, num_top, s);
  __syncthreads();
  if (threadIdx.x < 3 + 2 * num_top) {
    out[threadIdx.x] = s.out[threadIdx.x];
    __threadfence_system();  // the host reads it when it sees the step's stamp, which another SM writes
  }
  if (threadIdx.x == 0 && r.kv_len < p.state.log_stride) {
    p.state.token_log[r.slot * p.state.log_stride + r.kv_len] = id;
  }
  if (stop_id == static_cast<int32_t>(s.out[0])) p.state.stopped[r.slot] = 1;  // as keep_sampled does
  if (may_need_help) end_jobs(s);
}

// CTAs a row: while they would idle otherwise. 1 where there are no clusters.
int ctas_per_row(int num_rows) {
  if (!code_has_clusters()) return 1;
  return num_rows <= 16 ? 8 : num_rows <= 32 ? 4 : num_rows <= 64 ? 2 : 1;
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
  const auto ctas = static_cast<unsigned>(ctas_per_row(p.num_rows)), rows = static_cast<unsigned>(p.num_rows);
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim.x = ctas, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{.gridDim = dim3(ctas, rows), .blockDim = kThreads, .stream = stream};
  config.attrs = &cluster, config.numAttrs = ctas > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, choose_kernel, p, scratch);
}

}  // namespace tailrace::cuda
