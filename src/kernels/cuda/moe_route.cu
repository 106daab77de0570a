// Routing of a mixture of experts. Few tokens: a CTA takes eight rows of the router, asked for before the kernel before
// has ended, and a token or four, brought to shared memory once. Many: a warp takes four rows for four tokens. The last
// warp with a token's logits chooses its experts and counts them, the last CTA of all lays out the entries by expert
// and the tiles; a single token's choices need no such order. Bound: latency of two or three dependent reads where tokens are few, 2 * tokens * experts * hidden
// FLOP in fp32 where they are many.
#include "kernels/cuda/moe_route.h"

#include <cfloat>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_forms.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/step_rows.cuh"
#include "kernels/cuda/vector_math.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFewTokens = 64;    // up to here a warp takes one expert
constexpr int kSingleTokens = 8;  // up to here a CTA takes one token, and one CTA chooses for all
constexpr int kMany = 4;
constexpr size_t kRouteRoom = 48 * 1024;  // of shared memory, without asking for more
constexpr int kAhead = 12;                // pieces of a router's row that a lane holds

__device__ __forceinline__ void load_8(const float* from, float (&v)[8]) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)), b = __ldcg(reinterpret_cast<const float4*>(from + 4));
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Eight values of a router's row.
template <Format F>
struct Piece {
  uint4 v[F == Format::kF32 ? 2 : 1];
  __device__ __forceinline__ void load(const void* router, int64_t at) {
    const auto* from = static_cast<const char*>(router) + at * (F == Format::kF32 ? 4 : 2);
#pragma unroll
    for (int i = 0; i < (F == Format::kF32 ? 2 : 1); ++i) v[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ __forceinline__ void values(float (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4& part = v[F == Format::kF32 ? i / 4 : 0];
      const int word = F == Format::kF32 ? i % 4 : i / 2;
      const uint32_t bits = word == 0 ? part.x : word == 1 ? part.y : word == 2 ? part.z : part.w;
      if constexpr (F == Format::kF32) {
        out[i] = __uint_as_float(bits);
      } else if constexpr (F == Format::kF16) {
        out[i] = i % 2 == 0 ? __low2float(halves_of(bits)) : __high2float(halves_of(bits));
      } else {
        out[i] = __uint_as_float(i % 2 == 0 ? bits << 16 : bits & 0xffff0000u);
      }
    }
  }
};

// Experts of a token.
__device__ __forceinline__ int taken_of(const RouteParams& p) { return p.top_k + (p.shared_last ? 1 : 0); }

__device__ __forceinline__ bool idle_token(const StepRows& rows, int t) {
  return rows.rows[row_of(rows, t)].kv_len == 0;
}

// Larger floats have larger keys; what is no number counts as the least, so that a choice always exists.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(fmaxf(logit, -FLT_MAX));
  return static_cast<int32_t>(bits) < 0 ? ~bits : bits | 0x80000000u;
}

// One thread: that `rows` rows which are not idle read so many experts together.
__device__ __forceinline__ void count_experts(const RouteParams& p, int rows, int distinct) {
  if (p.counters == nullptr || rows == 0 || rows > kMostCountedRows) return;
  atomicAdd(&p.counters[rows].mixtures, 1ull);
  atomicAdd(&p.counters[rows].distinct, static_cast<unsigned long long>(distinct));
}

// A warp chooses the experts of a token, a lane each; the shared one follows them. ALONE: it is the step's only token,
// and its choices are the entries, a tile each: nothing is to be counted or laid out.
template <bool ALONE>
__device__ void choose(const RouteParams& p, int t) {
  constexpr int kLaneExperts = kMostExperts / 32;
  const int lane = threadIdx.x % 32, taken = taken_of(p);
  const int64_t at = int64_t{t} * taken;
  const bool idle = idle_token(p.rows, t);
  const float dense_share = p.shared_last ? __ldcg(p.out.dense_share + t) : 0;
  uint32_t key[kLaneExperts];
#pragma unroll
  for (int j = 0; j < kLaneExperts; ++j) {
    const int e = j * 32 + lane;
    key[j] = e < p.experts ? key_of(__ldcg(p.out.logits + int64_t{t} * p.experts + e)) : 0;
  }
  float first = 0, sum = 0, mine = 0;
  int my_id = 0;
  for (int i = 0; i < p.top_k; ++i) {
    uint32_t best = 0;
    int slot = 0;
#pragma unroll
    for (int j = 0; j < kLaneExperts; ++j) {
      if (key[j] > best) best = key[j], slot = j;
    }
    const uint32_t most = __reduce_max_sync(~0u, best);
    const int id =
        static_cast<int>(__reduce_min_sync(~0u, best == most ? static_cast<uint32_t>(slot * 32 + lane) : ~0u));
#pragma unroll
    for (int j = 0; j < kLaneExperts; ++j) {
      if (id == j * 32 + lane) key[j] = 0;
    }
    const float logit = __uint_as_float(static_cast<int32_t>(most) < 0 ? most & 0x7fffffffu : ~most);
    if (i == 0) first = logit;
    const float weight = expf(logit - first);
    sum += weight;
    if (lane == i) mine = weight, my_id = id;
  }
  if (lane >= taken) return;
  const bool shared = lane == p.top_k;
  if (shared) my_id = p.experts;
  p.out.ids[at + lane] = idle ? -1 : my_id;
  p.out.shares[at + lane] =
      shared ? dense_share : mine / sum * (p.expert_scale != nullptr ? p.expert_scale[my_id] : 1.0f);
  if constexpr (ALONE) {
    p.out.entry[lane] = idle ? -1 : lane;
    p.out.token[lane] = 0;
    p.out.tiles[lane] = {my_id, lane, 1};
    if (lane == 0) p.out.counts[kCountTiles] = idle ? 0 : taken, count_experts(p, idle ? 0 : 1, p.top_k);
    return;
  }
  p.out.entry[at + lane] = idle ? -1 : atomicAdd(p.out.counts + kCountOf + my_id, 1);
}

// One CTA: where each expert's entries begin, and their tiles; unless gather_entries follows, the entries.
__device__ void lay_out(const RouteParams& p) {
  __shared__ int first[kMostExperts + 1];
  int32_t* counts = p.out.counts;
  if (threadIdx.x < 32) {  // running sums of entries and of tiles, 32 experts at a time
    constexpr int kRounds = kMostExperts / 32;
    int counted[kRounds];  // asked for at once: the stores below keep one round's load behind another's
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int e = round * 32 + static_cast<int>(threadIdx.x);
      counted[round] = e < p.experts ? __ldcg(counts + kCountOf + e) : 0;
    }
    int entries_before = 0, tiles_before = 0, distinct = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (round * 32 >= p.experts) break;
      const int e = round * 32 + static_cast<int>(threadIdx.x), mine = counted[round];
      const int my_tiles = (mine + p.tile_tokens - 1) / p.tile_tokens;
      distinct += __popc(__ballot_sync(~0u, mine > 0));
      int upto = mine, tiles_upto = my_tiles;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int a = __shfl_up_sync(~0u, upto, o), b = __shfl_up_sync(~0u, tiles_upto, o);
        if (static_cast<int>(threadIdx.x) >= o) upto += a, tiles_upto += b;
      }
      const int begin = entries_before + upto - mine;
      if (e < p.experts) first[e] = counts[kFirstOf + e] = begin, counts[kCountOf + e] = 0;
      for (int i = 0; i < my_tiles; ++i) {
        p.out.tiles[tiles_before + tiles_upto - my_tiles + i] = {e, begin + i * p.tile_tokens,
                                                                 min(p.tile_tokens, mine - i * p.tile_tokens)};
      }
      entries_before += __shfl_sync(~0u, upto, 31), tiles_before += __shfl_sync(~0u, tiles_upto, 31);
    }
    if (threadIdx.x == 0) count_experts(p, entries_before / p.top_k, distinct);
    if (p.shared_last) {  // the last entries
      const int mine = entries_before / p.top_k, tiles = (mine + p.tile_tokens - 1) / p.tile_tokens;
      if (threadIdx.x == 0) {
        first[p.experts] = counts[kFirstOf + p.experts] = entries_before;
        counts[kCountOf + p.experts] = 0;
      }
      for (int i = threadIdx.x; i < tiles; i += 32) {
        p.out.tiles[tiles_before + i] = {p.experts, entries_before + i * p.tile_tokens,
                                         min(p.tile_tokens, mine - i * p.tile_tokens)};
      }
      tiles_before += tiles;
    }
    if (threadIdx.x == 0) counts[kCountTiles] = tiles_before;
  }
  if (p.gathers) return;
  __syncthreads();
  const int taken = taken_of(p);
  for (int i = threadIdx.x; i < p.rows.num_tokens * taken; i += kThreads) {
    const int id = __ldcg(p.out.ids + i);
    if (id < 0) continue;
    const int at = first[id] + __ldcg(p.out.entry + i);
    p.out.entry[i] = at;
    p.out.token[at] = i / taken;
  }
}

// All of the CTA's logits are written. The last CTA with logits of these tokens chooses their experts, the last of all
// lays out.
__device__ void finish_route(const RouteParams& p, int t0, int count) {
  __shared__ int last;
  const int tokens = p.rows.num_tokens, warp = threadIdx.x / 32, mine = min(count, tokens - t0);
  // Whether this CTA is the last to add `amount` to a count that ends at `total`; what the others wrote is then seen.
  const auto is_last = [&](int32_t* counter, int amount, int total) {
    __threadfence();
    __syncthreads();
    if (amount == total) return true;
    if (threadIdx.x == 0) {
      last = atomicAdd(counter, amount) + amount == total;
      if (last) *counter = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last != 0;
  };
  if (tokens <= kSingleTokens) {  // fewer round trips: one CTA chooses for all
    if (!is_last(p.out.counts + kCountChosen, 1, static_cast<int>(gridDim.x * gridDim.y))) return;
    if (tokens == 1 && !p.gathers) {
      if (warp == 0) choose<true>(p, 0);
      return;
    }
    if (warp < tokens) choose<false>(p, warp);
    __threadfence();
    __syncthreads();
  } else {
    if (!is_last(p.out.arrived + t0, 1, static_cast<int>(gridDim.y))) return;
    for (int t = warp; t < mine; t += kWarps) choose<false>(p, t0 + t);
    if (!is_last(p.out.counts + kCountChosen, mine, tokens)) return;
  }
  lay_out(p);
}

// Rows of the router, and behind them the dense branch's gate where there is one.
__host__ __device__ __forceinline__ int route_rows(const RouteParams& p) { return p.experts + (p.dense_gate != nullptr ? 1 : 0); }
struct RouteRow {
  const void* from;
  int64_t at;
  __device__ __forceinline__ RouteRow(const RouteParams& p, int row)
      : from(row >= p.experts && p.dense_gate != nullptr ? p.dense_gate : p.router),
        at(row >= p.experts ? (p.dense_gate != nullptr ? 0 : int64_t{p.experts - 1} * p.hidden) : int64_t{row} * p.hidden) {}
};
__device__ __forceinline__ void store_logit(const RouteParams& p, int token, int row, float logit) {
  if (row < p.experts) {
    p.out.logits[int64_t{token} * p.experts + row] = logit + (p.bias != nullptr ? p.bias[row] : 0.0f);
  } else if (row == p.experts && p.dense_gate != nullptr) {
    p.out.dense_share[token] = 1.0f / (1.0f + __expf(-logit));
  }
}

template <Format F, int TOKENS, int EXPERTS>
__global__ void __launch_bounds__(kThreads) route_many_kernel(const __grid_constant__ RouteParams p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tokens = p.rows.num_tokens;
  const int t0 = blockIdx.x * TOKENS, e0 = (blockIdx.y * kWarps + warp) * EXPERTS;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  float sums[TOKENS][EXPERTS] = {}, squares[TOKENS] = {};
  for (int k = lane * 8; k < p.hidden; k += 256) {
    float norm[8], x[TOKENS][8];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) load_8(p.x + int64_t{min(t0 + t, tokens - 1)} * p.hidden + k, x[t]);
    if (p.normed != nullptr && blockIdx.y == 0) {
      load_8(p.expert_norm + k, norm);
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {  // each warp has them all
        if (t % kWarps != warp || t0 + t >= tokens) continue;
        const uint4 packed = {ptx::pack_bf16(x[t][0] * norm[0], x[t][1] * norm[1]), ptx::pack_bf16(x[t][2] * norm[2], x[t][3] * norm[3]),
                              ptx::pack_bf16(x[t][4] * norm[4], x[t][5] * norm[5]), ptx::pack_bf16(x[t][6] * norm[6], x[t][7] * norm[7])};
        *reinterpret_cast<uint4*>(p.normed + int64_t{t0 + t} * p.hidden + k) = packed;
      }
    }
    load_8(p.norm + k, norm);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[t] += x[t][i] * x[t][i], x[t][i] *= norm[i];
    }
#pragma unroll
    for (int e = 0; e < EXPERTS; ++e) {
      float w[8];
      Piece<F> piece;
      const RouteRow row(p, e0 + e);
      piece.load(row.from, row.at + k);
      piece.values(w);
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t][e] += w[i] * x[t][i];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    const float factor = rsqrtf(warp_sum(squares[t]) / static_cast<float>(p.hidden) + p.eps);
#pragma unroll
    for (int e = 0; e < EXPERTS; ++e) {
      const float sum = warp_sum(sums[t][e]);
      if (lane == 0 && t0 + t < tokens) store_logit(p, t0 + t, e0 + e, sum * factor);
    }
    if (lane == 0 && e0 == 0 && t0 + t < tokens) p.out.factor[t0 + t] = factor;
  }
  finish_route(p, t0, TOKENS);
}

// x * norm of a token in shared memory, and this thread's part of its sum of squares.
__device__ __forceinline__ float load_token(const RouteParams& p, int t, float* to) {
  float squares = 0;
#pragma unroll 3
  for (int k = threadIdx.x * 4; k < p.hidden; k += kThreads * 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(p.x + int64_t{t} * p.hidden + k));
    const float4 g = *reinterpret_cast<const float4*>(p.norm + k);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    const float4 y = {v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w};
    *reinterpret_cast<float4*>(to + k) = y;
    if (p.normed != nullptr && blockIdx.y == 0) {
      const float4 n = *reinterpret_cast<const float4*>(p.expert_norm + k);
      *reinterpret_cast<uint2*>(p.normed + int64_t{t} * p.hidden + k) = {ptx::pack_bf16(v.x * n.x, v.y * n.y),
                                                                         ptx::pack_bf16(v.z * n.z, v.w * n.w)};
    }
  }
  return squares;
}

template <Format F, int TOKENS>
__global__ void __launch_bounds__(kThreads) route_few_kernel(const __grid_constant__ RouteParams p) {
  extern __shared__ __align__(16) float x[];  // [TOKENS][hidden]
  __shared__ float part[TOKENS][kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tokens = p.rows.num_tokens;
  const int t0 = blockIdx.x * TOKENS, e = blockIdx.y * kWarps + warp;
  ptx::let_next_kernel_start();
  const RouteRow row(p, e);
  Piece<F> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (lane * 8 + i * 256 < p.hidden) ahead[i].load(row.from, row.at + lane * 8 + i * 256);
  }
  ptx::wait_for_previous_kernel();
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    const float squares = warp_sum(load_token(p, min(t0 + t, tokens - 1), x + t * p.hidden));
    if (lane == 0) part[t][warp] = squares;
  }
  __syncthreads();
  float sums[TOKENS] = {};
  const auto add = [&](const Piece<F>& piece, int k) {
    float w[8];
    piece.values(w);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const float4 a = *reinterpret_cast<const float4*>(x + t * p.hidden + k),
                   b = *reinterpret_cast<const float4*>(x + t * p.hidden + k + 4);
      sums[t] += w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w + w[4] * b.x + w[5] * b.y + w[6] * b.z + w[7] * b.w;
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (lane * 8 + i * 256 < p.hidden) add(ahead[i], lane * 8 + i * 256);
  }
  for (int k = lane * 8 + kAhead * 256; k < p.hidden; k += 256) {
    Piece<F> piece;
    piece.load(row.from, row.at + k);
    add(piece, k);
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    float squares = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) squares += part[t][w];
    const float factor = rsqrtf(squares / static_cast<float>(p.hidden) + p.eps), sum = warp_sum(sums[t]);
    if (lane != 0 || t0 + t >= tokens) continue;
    store_logit(p, t0 + t, e, sum * factor);
    if (e == 0) p.out.factor[t0 + t] = factor;
  }
  finish_route(p, t0, TOKENS);
}

__global__ void __launch_bounds__(kThreads)
    gather_kernel(Routing routing, int taken, int cols, const __nv_bfloat16* from, __nv_bfloat16* to) {
  __shared__ int entry[kMostTopK];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();  // not before: what follows may read the routing at once
  const int t = blockIdx.x;
  if (static_cast<int>(threadIdx.x) < taken) {
    const int64_t i = int64_t{t} * taken + threadIdx.x;
    const int id = __ldcg(routing.ids + i),
              at = id < 0 ? -1 : __ldcg(routing.counts + kFirstOf + id) + __ldcg(routing.entry + i);
    entry[threadIdx.x] = at;
    if (at >= 0) routing.entry[i] = at, routing.token[at] = t;
  }
  __syncthreads();
  for (int k = threadIdx.x * 8; k < cols; k += kThreads * 8) {
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + int64_t{t} * cols + k));
    for (int i = 0; i < taken; ++i) {
      if (entry[i] >= 0) *reinterpret_cast<uint4*>(to + int64_t{entry[i]} * cols + k) = v;
    }
  }
}

__device__ __forceinline__ float squares_of(const float4& v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

// Where what TOGETHER of a token's experts gave lies, from its `first` on, and how often it counts. Where fewer are
// left, one is read again and does not count.
template <int TOGETHER>
struct Choices {
  int place[TOGETHER];
  float share[TOGETHER];
  bool idle = true;  // nothing was chosen
  __device__ __forceinline__ void load(const MixParams& p, int t, int first) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int choice = min(first + i, p.taken - 1);
      const int64_t at = int64_t{t} * p.taken + choice;
      const int entry = __ldcg(p.routing.entry + at);
      const float weight = __ldcg(p.routing.shares + at);
      idle = entry < 0;
      // A single token's entries are its choices in their order: no need to wait for `entry`.
      place[i] = p.tokens == 1 ? choice : max(entry, 0);
      share[i] = first + i < p.taken ? weight : 0.0f;
    }
  }
};

// Four columns of what the token's experts gave, all of `chosen` asked for at once: no load depends on a condition,
// which would put it behind another.
template <int TOGETHER>
__device__ __forceinline__ float4 experts_sum(const MixParams& p, int t, int k, Choices<TOGETHER>& chosen) {
  float4 v = {0, 0, 0, 0};
  for (int first = 0; first < p.taken; first += TOGETHER) {
    if (first > 0) chosen.load(p, t, first);
    float4 y[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      y[i] = __ldcg(reinterpret_cast<const float4*>(p.y + int64_t{chosen.place[i]} * p.hidden + k));
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) add_scaled(v, y[i], chosen.share[i]);
  }
  return chosen.idle ? float4{0, 0, 0, 0} : v;
}

// A thread's columns of the residual, and of what makes the next block's input of them.
struct ResidualPart {
  float4 x, next_weight;
  float scale;
  __device__ __forceinline__ void load(const MixParams& p, int t, int k) {
    x = __ldcg(reinterpret_cast<const float4*>(p.x + int64_t{t} * p.hidden + k));
    scale = p.out_scale != nullptr ? *p.out_scale : 1.0f;
    if (p.next.next != nullptr) next_weight = *reinterpret_cast<const float4*>(p.next.weight + k);
  }
  // The columns get their sum; their squares.
  __device__ __forceinline__ float add(const MixParams& p, int t, int k, const float4& sum) const {
    float4 v = x;
    add_scaled(v, sum, 1);
    v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    *reinterpret_cast<float4*>(p.x + int64_t{t} * p.hidden + k) = v;
    if (p.next.next != nullptr) {
      const float4& g = next_weight;
      const uint2 packed = {ptx::pack_bf16(v.x * g.x, v.y * g.y), ptx::pack_bf16(v.z * g.z, v.w * g.w)};
      *reinterpret_cast<uint2*>(p.next.next + int64_t{t} * p.hidden + k) = packed;
    }
    return squares_of(v);
  }
};

__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[kWarps];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += part[w];
  __syncthreads();
  return total;
}

// The routing and x are read before the kernel before has ended: that one lets this one start only when they are there.
template <int TOGETHER>
__global__ void __launch_bounds__(kThreads) mix_kernel(const __grid_constant__ MixParams p) {
  ptx::let_next_kernel_start();
  const int t = blockIdx.x, k = (blockIdx.y * kThreads + threadIdx.x) * 4;
  Choices<TOGETHER> chosen;
  ResidualPart residual;
  if (k < p.hidden) chosen.load(p, t, 0), residual.load(p, t, k);
  ptx::wait_for_previous_kernel();
  float squares = 0;
  if (k < p.hidden) {
    float4 v = experts_sum(p, t, k, chosen);
    if (p.dense != nullptr) {
      add_scaled(v, __ldcg(reinterpret_cast<const float4*>(p.dense + int64_t{t} * p.hidden + k)),
                 p.dense_share != nullptr ? __ldcg(p.dense_share + t) : 1.0f);
    }
    squares = residual.add(p, t, k, v);
  }
  if (p.next.next == nullptr) return;
  const float total = block_sum(squares);
  if (threadIdx.x == 0) p.next.squares[int64_t{blockIdx.y} * p.squares_stride + t] = total;
}

// Two sums over a CTA; calls in turn take rooms of their own.
template <int THREADS>
__device__ __forceinline__ float2 block_sums(float a, float b, float2 (&room)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float2 mine = {warp_sum(a), warp_sum(b)};
  if (lane == 0) room[warp] = mine;
  __syncthreads();
  const float2 v = lane < THREADS / 32 ? room[lane] : float2{0, 0};
  return {warp_sum(v.x), warp_sum(v.y)};
}

// A CTA takes a token: norms need all of its columns. Few tokens: a thread for every four of them, since what counts is
// the latency of the loads.
template <int THREADS, int PARTS>
__global__ void __launch_bounds__(THREADS) mix_normed_kernel(const __grid_constant__ MixParams p) {
  __shared__ float2 room[3][32];
  ptx::let_next_kernel_start();
  const int t = blockIdx.x;
  ptx::wait_for_previous_kernel();
  Choices<8> chosen;
  float4 sum[PARTS] = {}, dense[PARTS] = {};
  float sum_squares = 0, dense_squares = 0;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int k = (i * THREADS + static_cast<int>(threadIdx.x)) * 4;
    if (k >= p.hidden) continue;
    if (p.dense != nullptr) dense[i] = __ldcg(reinterpret_cast<const float4*>(p.dense + int64_t{t} * p.hidden + k));
    if (p.taken > 0) chosen.load(p, t, 0);
    sum[i] = experts_sum(p, t, k, chosen);
    sum_squares += squares_of(sum[i]), dense_squares += squares_of(dense[i]);
  }
  const auto factor = [&](float squares, float eps) { return rsqrtf(squares / static_cast<float>(p.hidden) + eps); };
  float of_experts = 1, of_dense = p.dense_share != nullptr ? __ldcg(p.dense_share + t) : 1.0f;
  if (p.experts_norm != nullptr || p.dense_norm != nullptr) {
    const float2 squares = block_sums<THREADS>(sum_squares, dense_squares, room[0]);
    if (p.experts_norm != nullptr) of_experts = factor(squares.x, p.experts_eps);
    if (p.dense_norm != nullptr) of_dense *= factor(squares.y, p.dense_eps);
  }
  const auto weighted = [&](const float4& v, const float* weight, int k, float by) {
    const float4 w = weight != nullptr ? *reinterpret_cast<const float4*>(weight + k) : float4{1, 1, 1, 1};
    return float4{v.x * w.x * by, v.y * w.y * by, v.z * w.z * by, v.w * w.w * by};
  };
  sum_squares = 0;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int k = (i * THREADS + static_cast<int>(threadIdx.x)) * 4;
    if (k >= p.hidden) continue;
    sum[i] = weighted(sum[i], p.experts_norm, k, of_experts);
    add_scaled(sum[i], weighted(dense[i], p.dense_norm, k, of_dense), 1);
    sum_squares += squares_of(sum[i]);
  }
  const float of_sum = p.sum_norm != nullptr ? factor(block_sums<THREADS>(sum_squares, 0, room[1]).x, p.sum_eps) : 1.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int k = (i * THREADS + static_cast<int>(threadIdx.x)) * 4;
    if (k >= p.hidden) continue;
    ResidualPart residual;
    residual.load(p, t, k);
    squares += residual.add(p, t, k, weighted(sum[i], p.sum_norm, k, of_sum));
  }
  if (p.next.next == nullptr) return;
  squares = block_sums<THREADS>(squares, 0, room[2]).x;
  if (threadIdx.x == 0) p.next.squares[t] = squares;
}

template <Format F>
cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  const int tokens = p.rows.num_tokens;
  const auto grid = [&](int per_cta, int experts) {
    return dim3(static_cast<unsigned>((tokens + per_cta - 1) / per_cta),
                static_cast<unsigned>((route_rows(p) + experts - 1) / experts));
  };
  const auto row_bytes = static_cast<size_t>(p.hidden) * sizeof(float);
  if (tokens <= kSingleTokens && row_bytes <= kRouteRoom) {
    return launch_overlapped(route_few_kernel<F, 1>, grid(1, kWarps), kThreads, row_bytes, stream, p);
  }
  if (tokens <= kFewTokens && kMany * row_bytes <= kRouteRoom) {
    return launch_overlapped(route_few_kernel<F, kMany>, grid(kMany, kWarps), kThreads, kMany * row_bytes, stream, p);
  }
  return launch_overlapped(route_many_kernel<F, kMany, kMany>, grid(kMany, kMany * kWarps), kThreads, 0, stream, p);
}

}  // namespace

cudaError_t route(const RouteParams& p, cudaStream_t stream) {
  switch (p.router_format) {
    case Format::kF32:
      return launch_route<Format::kF32>(p, stream);
    case Format::kF16:
      return launch_route<Format::kF16>(p, stream);
    default:
      return launch_route<Format::kBF16>(p, stream);
  }
}

cudaError_t gather_entries(const Routing& routing, int tokens, int taken, int cols, const __nv_bfloat16* from,
                           __nv_bfloat16* to, cudaStream_t stream) {
  return launch_overlapped(gather_kernel, tokens, kThreads, 0, stream, routing, taken, cols, from, to);
}

cudaError_t mix(const MixParams& p, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(p.tokens);
  if (!p.norms()) {
    // As many as a token takes, of models' counts: gpt-oss, and eight with a shared expert.
    const auto kernel = p.taken == 9 ? mix_kernel<9> : p.taken <= 4 ? mix_kernel<4> : mix_kernel<8>;
    return launch_overlapped(kernel, dim3(tokens, static_cast<unsigned>(mixture_parts(p))), kThreads, 0, stream, p);
  }
  constexpr int kWideThreads = 1024, kWideTokens = 64;
  const auto start = [&](auto kernel, int threads) { return launch_overlapped(kernel, tokens, threads, 0, stream, p); };
  if (p.tokens <= kWideTokens) {
    return p.hidden <= 4 * kWideThreads ? start(mix_normed_kernel<kWideThreads, 1>, kWideThreads)
                                        : start(mix_normed_kernel<kWideThreads, 2>, kWideThreads);
  }
  if (p.hidden <= 4 * kThreads * 3) return start(mix_normed_kernel<kThreads, 3>, kThreads);
  return start(mix_normed_kernel<kThreads, 8>, kThreads);
}

}  // namespace tailrace::cuda
