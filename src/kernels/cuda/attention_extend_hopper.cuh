// Extend attention on Hopper: o = softmax(scale q K^T + causal mask) V over KV tiles of 64 tokens.
//
// Mapping. A CTA owns a tile of 128 packed rows (token, head of the group) of one KV head: row i is token i / group, head
// i % group. One thread issues bulk copies of K and V tiles, straight from the pool's blocks, which hold the 128-byte swizzle
// already; two warp groups of 64 rows each run wgmma: S = Q K^T (64 x 64 x D), then O += P V with P from registers. The next
// tile's S is issued before this tile's PV, so that softmax runs under tensor work. At head_dim 64, where softmax is most of the
// work, two CTAs share an SM: four groups hide each other's latencies, and one CTA's start and end the other's; their registers
// leave no room for a producer warp, so consumer threads load. At head_dim 512 a CTA owns 64 rows, and the two groups hold half
// of the output dims each (both compute S).
// Order. Tiles with the most keys start first, so that short ones fill the end of the grid.
// Splits. Few tiles leave SMs idle: then CTAs take a part of a tile's keys each, and the last of a tile to end joins the parts.
// FP8: wgmma takes keys and values from shared memory in the queries' type, so the warp group that loads also makes bf16, which
// holds every e4m3, of each part that has come; the others do not know. At head_dim 64, too: then one CTA an SM.
// Bound: 4 * rows * keys * D FLOP (5 of 4 at 512) over the bf16 rate; S and PV of width 64 keep shared memory at half its rate.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention_extend_tile.cuh"
#include "kernels/cuda/attention_fp8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.h"

namespace tailrace::cuda {
namespace {

using namespace extend;

// What a CTA spends before and after its KV tiles, and on joining parts, in KV tiles' time (measured, see docs/KERNELS.md).
constexpr double kExtendPrologueTiles = 3, kExtendJoinTiles = 4;

// Asks for COUNT parts of block `id`, K before V, from `first` on; the ring's next stages are `stage` and those behind it, free
// once `phase` has ended there.
template <int D, int COUNT>
__device__ __forceinline__ void load_stages(const ExtendParams& p, int head, int32_t id, int first, char* stages, uint64_t* full,
                                            uint64_t* empty, int& stage, uint32_t& phase) {
  using C = Config<D>;
  const char* src = static_cast<const char*>(p.pool) + (int64_t{id} * p.kv_heads + head) * kv_tile_values(D) * 2;
#pragma unroll 1
  for (int part = first; part < first + COUNT; ++part) {
    ptx::mbarrier_wait(empty + stage, phase);
    ptx::mbarrier_expect(full + stage, C::kStageBytes);
    ptx::bulk_copy(stages + stage * C::kStageBytes, src + part * C::kStageBytes, C::kStageBytes, full + stage);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
}

template <int D>
__device__ void produce(const ExtendParams& p, const Tile& t, char* stages, uint64_t* full, uint64_t* empty) {
  const int32_t* table = p.block_table + t.row.slot * p.table_stride;
  int stage = 0;
  uint32_t phase = 1;  // the ring starts empty
  int32_t ahead = t.high > t.low ? table[t.high - 1] : 0;
  for (int tile = t.high - 1; tile >= t.low; --tile) {
    const int32_t id = ahead;
    if (tile > t.low) ahead = table[tile - 1];
    load_stages<D, 2 * Config<D>::kParts>(p, t.head, id, 0, stages, full, empty, stage, phase);
  }
}

// A warp group's side of the ring.
template <int D, bool FP8>
struct Consumer {
  using C = Config<D, FP8>;
  char* stages;
  uint64_t *full, *empty;
  int stage = 0;
  uint32_t phase = 0;

  __device__ uint32_t wait() {
    ptx::mbarrier_wait(full + stage, phase);
    const uint32_t address = ptx::smem_address(stages + stage * C::kStageBytes);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
    return address;
  }
  // The stage taken `back` waits ago may be refilled; one arrival per warp group.
  __device__ void release(int back) {
    const int s = stage - back < 0 ? stage - back + C::kStages : stage - back;
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty + s);
  }
};

constexpr int kProducers = 128;

// The part of e4m3 at `codes` as a stage of the ring: 16 dims of a token at a time.
template <class C>
__device__ __forceinline__ void widen_part(const char* codes, char* stage, int thread) {
#pragma unroll 2
  for (int i = thread; i < C::kCodeBytes / 16; i += kProducers) {
    const int token = i / 4 % kBlockTokens, dim = i / (4 * kBlockTokens) * 64 + ((i % 4) ^ (token >> 1 & 3)) * 16;
    const uint4 v = *reinterpret_cast<const uint4*>(codes + i * 16);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t word = words[2 * half + n / 2];
        const uint32_t halves = n % 2 == 0 ? fp8::low_pair(word) : fp8::high_pair(word);
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        pairs[n] = ptx::pack_bf16(both.x, both.y);
      }
      *reinterpret_cast<uint4*>(stage + swizzled(token, dim + half * 8) * 2) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

// FP8: all threads of the group. Bulk copies bring parts to `codes`, kCodeStages ahead.
template <int D>
__device__ void produce_fp8(const ExtendParams& p, const Tile& t, const Consumer<D, true>& ring, char* codes,
                            uint64_t* arrived) {
  using C = Config<D, true>;
  constexpr int kBlockParts = 2 * C::kParts;
  const int thread = static_cast<int>(threadIdx.x) - C::kConsumers, parts = (t.high - t.low) * kBlockParts;
  const int32_t* table = p.block_table + t.row.slot * p.table_stride;
  const auto request = [&](int part) {
    const int64_t id = table[t.high - 1 - part / kBlockParts];
    const char* tile = static_cast<const char*>(p.pool) + (id * p.kv_heads + t.head) * kv_tile_values(D);
    uint64_t* barrier = arrived + part % C::kCodeStages;
    ptx::mbarrier_expect(barrier, C::kCodeBytes);
    ptx::bulk_copy(codes + part % C::kCodeStages * C::kCodeBytes, tile + part % kBlockParts * C::kCodeBytes, C::kCodeBytes,
                   barrier);
  };
  for (int part = 0; thread == 0 && part < min(parts, C::kCodeStages); ++part) request(part);
  int stage = 0;
  uint32_t phase = 1;  // the ring starts empty
  for (int part = 0; part < parts; ++part) {
    ptx::mbarrier_wait(arrived + part % C::kCodeStages, part / C::kCodeStages & 1);
    ptx::mbarrier_wait(ring.empty + stage, phase);
    widen_part<C>(codes + part % C::kCodeStages * C::kCodeBytes, ring.stages + stage * C::kStageBytes, thread);
    ptx::async_fence();  // wgmma reads what ordinary stores wrote
    ptx::mbarrier_arrive(ring.full + stage);
    ptx::named_barrier(5, kProducers);  // all have read the part
    if (thread == 0 && part + C::kCodeStages < parts) request(part + C::kCodeStages);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
}

// Issues S = Q K^T of one tile; the caller commits.
template <int D, bool FP8>
__device__ __forceinline__ void issue_scores(float (&s)[32], const uint32_t (*q)[4], uint32_t q_address,
                                             Consumer<D, FP8>& ring) {
  using C = Config<D, FP8>;
#pragma unroll
  for (int part = 0; part < C::kParts; ++part) {
    const uint32_t k = ring.wait();
#pragma unroll
    for (int d = 0; d < C::kPartDims; d += 16) {
      const uint64_t b = ptx::descriptor(k + (d >> 6) * 8192 + (d & 63) * 2);
      const int add = part + d > 0;
      if constexpr (C::kQueryInRegisters) {
        ptx::wgmma_rs<0>(s, q[d / 16], b, add);
      } else {
        const int at = part * C::kPartDims + d;
        ptx::wgmma_ss<0>(s, ptx::descriptor(q_address + (at >> 6) * 8192 + (at & 63) * 2), b, add);
      }
    }
  }
}

// Issues O += P V of one tile; the caller commits.
template <int D, bool FP8>
__device__ __forceinline__ void issue_output(float (&o)[Config<D>::kOutDims / 2], const uint32_t (&p)[4][4],
                                             Consumer<D, FP8>& ring, int group_index) {
  using C = Config<D>;
  uint32_t v = ring.wait();
  if constexpr (C::kSplitDims) {
    const uint32_t upper = ring.wait();
    if (group_index == 1) v = upper;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::wgmma_rs<1>(o, p[k], ptx::descriptor(v + k * 2048), 1);
}

// Without a producer: the first warp fills the ring, all of it, before anything else; then a thread of each group refills it, the
// first group's with K, the other's with V.
template <int D>
__device__ void fill_ring(const ExtendParams& p, const Tile& t, const Consumer<D, false>& ring) {
  constexpr int kTiles = Config<D>::kStages / (2 * Config<D>::kParts);
  const int lane = threadIdx.x % 32, first = t.high - 1;
  const int32_t id = lane < kTiles && first - lane >= t.low ? p.block_table[t.row.slot * p.table_stride + first - lane] : 0;
  int stage = 0;
  uint32_t phase = 1;
  for (int i = 0; i < kTiles && first - i >= t.low; ++i) {
    const int32_t block = __shfl_sync(~0u, id, i);
    if (lane == 0) load_stages<D, 2>(p, t.head, block, 0, ring.stages, ring.full, ring.empty, stage, phase);
  }
}

// While tile i is worked on, the place of the tile two before it, which the other group has left by then as well, is refilled.
template <int D>
struct Refill {
  using C = Config<D>;
  static constexpr __device__ int reach() { return C::kStages / (2 * C::kParts) - 2; }
  const int32_t* table;  // of the row
  int32_t ahead = 0;     // the next block

  __device__ void start(const Tile& t) {
    if (threadIdx.x % 128 == 0 && t.high - 3 - reach() >= t.low) ahead = table[t.high - 3 - reach()];
  }
  // ring stands behind V of the tile before `tile`.
  __device__ __forceinline__ void step(const ExtendParams& p, const Tile& t, int tile, const Consumer<D, false>& ring, int group_index) {
    if (threadIdx.x % 128 == 0 && tile <= t.high - 3 && tile - reach() >= t.low) {
      int stage = ring.stage - 4 + group_index;
      uint32_t phase = ring.phase;
      if (stage < 0) stage += C::kStages, phase ^= 1;
      const int32_t id = ahead;
      if (tile - reach() > t.low) ahead = table[tile - reach() - 1];
      load_stages<D, 1>(p, t.head, id, group_index, ring.stages, ring.full, ring.empty, stage, phase);
    }
    __syncwarp();
  }
};

// The group's query in shared memory and, where registers hold it, as fragments.
template <int D>
struct Query {
  using C = Config<D>;
  char* memory;
  uint32_t address;
  uint32_t fragments[C::kQueryInRegisters ? D / 16 : 1][4];

  __device__ __forceinline__ Query(const ExtendParams& p, const Tile& t, char* query, int group_index)
      : memory(query + (C::kSplitDims ? 0 : group_index * 64 * D * 2)), address(ptx::smem_address(memory)) {
    if (C::kSplitDims) {
      load_query<D>(p, t, memory, 0, threadIdx.x, 256);
      ptx::named_barrier(1, 256);
    } else {
      load_query<D>(p, t, memory, group_index * 64, threadIdx.x % 128, 128);
      ptx::named_barrier(1 + group_index, 128);
    }
    if constexpr (C::kQueryInRegisters) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
      for (int d = 0; d < D; d += 16) {
        ptx::ldmatrix_x4(fragments[d / 16], address + swizzled(warp * 16 + (lane & 15), d + (lane >> 4) * 8) * 2);
      }
    }
  }
};

// Goes over the tile's KV, from its last block down; at least one.
template <int D, bool FP8>
__device__ __forceinline__ void attend(const ExtendParams& p, const Tile& t, Consumer<D, FP8>& ring, Refill<D>& refill,
                                       const Query<D>& query, const Rows& rows, Softmax& softmax,
                                       float (&o)[Config<D>::kOutDims / 2], int group_index) {
  using C = Config<D, FP8>;
  // A tile is an edge for this CTA when some row does not see all of it.
  const int group = p.q_heads / p.kv_heads, base = t.row.kv_len - t.row.q_len;
  const int first_position = base + t.first_packed / group;
  const int last_position = base + min((t.first_packed + C::kRows - 1) / group, t.row.q_len - 1);
  auto is_edge = [&](int tile) {
    return (tile + 1) * kBlockTokens - 1 > first_position ||
           (p.window > 0 && tile * kBlockTokens <= last_position - p.window);
  };
  float factor[2];
  uint32_t probability[4][4];
  {
    float s[32];
    ptx::wgmma_fence();
    issue_scores<D, FP8>(s, query.fragments, query.address, ring);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (int part = 1; part <= C::kParts; ++part) ring.release(part);
    softmax.apply(s, p, rows, (t.high - 1) * kBlockTokens, is_edge(t.high - 1), factor);
    pack(probability, s);
  }
  for (int tile = t.high - 2; tile >= t.low; --tile) {
    // In the ring: V of the tile before, then K of this one.
    float s[32];
    Consumer<D, FP8> next = ring;
    for (int part = 0; part < C::kParts; ++part) {  // this tile's K lies behind that V
      if (++next.stage == C::kStages) next.stage = 0, next.phase ^= 1;
    }
    ptx::wgmma_fence();
    issue_scores<D, FP8>(s, query.fragments, query.address, next);
    ptx::wgmma_commit();
    issue_output<D, FP8>(o, probability, ring, group_index);
    ptx::wgmma_commit();
    if constexpr (!C::kProducer) refill.step(p, t, tile, ring, group_index);
    ptx::wgmma_wait<1>();
    for (int part = 1; part <= C::kParts; ++part) next.release(part);
    const bool rescale = softmax.apply(s, p, rows, tile * kBlockTokens, is_edge(tile), factor);
    ptx::wgmma_wait<0>();
    for (int part = 1; part <= C::kParts; ++part) ring.release(part);
    if (rescale) {
#pragma unroll
      for (int i = 0; i < C::kOutDims / 2; ++i) o[i] *= factor[(i >> 1) & 1];
    }
    pack(probability, s);
    ring = next;
  }
  ptx::wgmma_fence();
  issue_output<D, FP8>(o, probability, ring, group_index);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

template <int D, bool SPLIT, bool FP8>
__device__ void consume(const ExtendParams& p, const Tile& t, Consumer<D, FP8> ring, char* query_memory, uint64_t* claims,
                        int group_index) {
  using C = Config<D, FP8>;
  Refill<D> refill{p.block_table + t.row.slot * p.table_stride};
  if constexpr (!C::kProducer) {
    if (threadIdx.x < 32) fill_ring<D>(p, t, ring);
    refill.start(t);
  }
  const Query<D> query(p, t, query_memory, group_index);
  const Rows rows = rows_of<D>(p, t, group_index);
  float o[C::kOutDims / 2];
#pragma unroll
  for (float& v : o) v = 0;
  Softmax softmax;
  if (!SPLIT || t.high > t.low) attend<D, FP8>(p, t, ring, refill, query, rows, softmax, o, group_index);
#pragma unroll
  for (float& l : softmax.denominator) l = ptx::quad_sum(l);
  if constexpr (!C::kQueryInRegisters) {  // until the products of all warps that read this query tile have ended
    ptx::named_barrier(C::kSplitDims ? 1 : 1 + group_index, C::kSplitDims ? 256 : 128);
  }
  if constexpr (SPLIT) {
    if (t.parts > 1 && !join_parts<D>(p, t, group_index, claims, softmax, o)) return;
  }
  normalise<C::kOutDims>(p, rows, softmax, o);
  const int first_packed = t.first_packed + (C::kSplitDims ? 0 : group_index * 64);
  write_rows<C::kOutDims>(p, t, query.memory, threadIdx.x % 128 / 32 * 16, first_packed,
                          C::kSplitDims ? group_index * C::kOutDims : 0, o);
}

template <int D, bool SPLIT, bool FP8>
__global__ void __launch_bounds__(Config<D, FP8>::kThreads, Config<D, FP8>::kMinCtas)
extend_kernel(const __grid_constant__ ExtendParams p) {
  using C = Config<D, FP8>;
  extern __shared__ __align__(1024) char memory[];
  char* query = memory + C::kStages * C::kStageBytes;
  char* codes = query + C::kQueryBytes;
  auto* full = reinterpret_cast<uint64_t*>(codes + C::kCodeStages * C::kCodeBytes);
  uint64_t *empty = full + C::kStages, *claims = empty + C::kStages, *arrived = claims + 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(full + i, FP8 ? kProducers : 1);
      ptx::mbarrier_init(empty + i, 2);
    }
    for (int i = 0; i < C::kCodeStages; ++i) ptx::mbarrier_init(arrived + i, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  if (p.late_decode) ptx::let_next_kernel_start();
  const Tile t = tile_of<D, SPLIT>(p, blockIdx.x);
  const Consumer<D, FP8> ring{memory, full, empty};
  if constexpr (!C::kProducer) {
    consume<D, SPLIT>(p, t, ring, query, claims, threadIdx.x / 128);
  } else if (threadIdx.x >= C::kConsumers) {
    ptx::registers_down<FP8 ? 40 : 24>();
    if constexpr (FP8) {
      produce_fp8<D>(p, t, ring, codes, arrived);
    } else if (threadIdx.x == C::kConsumers) {
      produce<D>(p, t, memory, full, empty);
    }
  } else {
    ptx::registers_up<FP8 ? 232 : 240>();
    consume<D, SPLIT>(p, t, ring, query, claims, threadIdx.x / 128);
  }
}

template <int D, bool SPLIT, bool FP8>
cudaError_t prepare() {
  static const cudaError_t prepared = [] {
    const cudaError_t error =
        cudaFuncSetAttribute(extend_kernel<D, SPLIT, FP8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Config<D, FP8>::kSharedBytes);
    if (error != cudaSuccess) return error;
    // As decode does: kernels whose SMs are divided differently between shared memory and L1 cannot share one.
    return cudaFuncSetAttribute(extend_kernel<D, SPLIT, FP8>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
  }();
  return prepared;
}

template <int D, bool SPLIT, bool FP8>
cudaError_t launch(const ExtendParams& p, cudaStream_t stream) {
  using C = Config<D, FP8>;
  if (const cudaError_t error = prepare<D, SPLIT, FP8>(); error != cudaSuccess) return error;
  const int ctas = p.split.from + (p.num_tiles * p.kv_heads - p.split.from) * p.split.parts;
  return launch_overlapped(extend_kernel<D, SPLIT, FP8>, ctas, C::kThreads, C::kSharedBytes, stream, p);
}

template <bool FP8>
ExtendSplit split_of(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode) {
  if (tiles == 0 || window > 0) return {};
  // Beside decode, which takes about half of the CTAs' places (mixed_defaults) for an unknown part of the time, a last wave
  // cannot be foreseen: only tiles that fill less than one are cut.
  const int held = sms * (padded_dim(head_dim) == 64 ? Config<64, FP8>::kMinCtas : 1), resident = beside_decode ? held / 2 : held;
  const double each = static_cast<double>(kv_tiles) / tiles;
  const int from = tiles / resident * resident;
  if (beside_decode && from > 0) return {};
  ExtendSplit best;
  double least = 0;
  for (int parts = 1; parts <= kMaxExtendSplits && parts * (tiles - from) <= kMaxExtendParts; ++parts) {
    const double whole = each + kExtendPrologueTiles;
    const double part = parts == 1 ? whole : each / parts + kExtendPrologueTiles + kExtendJoinTiles + parts;
    const double time = std::ceil((tiles - from) * parts / static_cast<double>(resident)) * part;
    if (parts == 1 || time < least) best = {parts, from}, least = time;
  }
  return best;
}

template <bool FP8>
cudaError_t prepare_both(int head_dim) {
  return by_head_dim(head_dim, [&]<int D>() {
    const cudaError_t error = prepare<D, false, FP8>();
    return error != cudaSuccess ? error : prepare<D, true, FP8>();
  });
}

template <bool FP8>
cudaError_t run(const ExtendParams& p, cudaStream_t stream) {
  if (p.num_tiles == 0) return cudaSuccess;
  const int dim = padded_dim(p.head_dim);
  if (dim != 64 && dim != 128 && dim != 256 && dim != 512) return cudaErrorInvalidValue;
  return by_head_dim(p.head_dim, [&]<int D>() {
    return p.split.parts > 1 ? launch<D, true, FP8>(p, stream) : launch<D, false, FP8>(p, stream);
  });
}

}  // namespace
}  // namespace tailrace::cuda
