// Decode attention: o = softmax(scale q K^T) V for one query token per row, over KV tiles of 64 tokens.
//
// Mapping. Each (row, KV head) unit is cut into chunks of equal length (attention_plan.cu); CTAs take them by ticket, so that the grid
// ends together although some SMs read faster. The producer warp issues bulk copies of a chunk's queries, and of K and V
// into a ring, running ahead over chunk borders; consumer warps take 16 of a tile's 64 keys each and all query heads of
// the group at once (m16n8k16), with their own running maximum, denominator and output. At head_dim 512 eight consumer
// warps: two share 16 keys, each with half of the output dims.
// Merge. A unit of one chunk is written at once. Others leave partials (o, m, l); when a unit's chunks have all been written
// (flags, one epoch per launch; the grid is resident, so waiting is safe), CTAs merge equal slices of the outputs.
// Sinks join the denominator there, or in the direct write: once, unscaled, in log2 units.
// FP8: tiles of e4m3 are half as large, so the ring has twice as many stages; they become operands in f16 as they are read
// (attention_fp8.cuh).
// Bound: bytes of KV / HBM bandwidth; per 16 KiB tile at head_dim 64 about 820 cycles an SM against ~300 of one warp's work.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_fp8.cuh"
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {
namespace {

constexpr int kKeysPerWarp = 16;
constexpr int kQueue = 2;  // chunks that the producer may be ahead

template <int D, int ROWS, bool FP8>
struct Config {
  static constexpr int kDimSplit = D > 256 ? 2 : 1;          // warps that share keys
  static constexpr int kWarps = 4 * kDimSplit;               // consumers
  static constexpr int kConsumers = kWarps * 32;
  static constexpr int kThreads = kConsumers + (D > 256 ? 128 : 32);  // a whole warp group where registers are moved
  static constexpr int kOutDims = D / kDimSplit;             // output dims of a warp
  static constexpr int kPartDims = D > 256 ? 256 : D;        // a ring stage: K or V of a tile, at most 256 dims of it
  static constexpr int kParts = D / kPartDims;               // stages for K, and as many for V
  static constexpr int kValueBytes = FP8 ? 1 : 2;
  static constexpr int kStageBytes = kBlockTokens * kPartDims * kValueBytes;
  static constexpr int kMinCtas = D == 64 || (D == 128 && ROWS == 8) ? 2 : 1;
  static constexpr int kBf16Stages = D == 64 ? 10 : D == 128 ? (ROWS == 8 ? 6 : 11) : D == 256 && ROWS == 8 ? 6 : 5;
  static constexpr int kStages = FP8 ? 2 * kBf16Stages : kBf16Stages;
  static constexpr int kJoinSlots = D == 64 ? 4 : 2;         // key-warps whose outputs lie in shared memory at once
  static constexpr int kJoinFloats = kJoinSlots * ROWS * D;
  static constexpr int kQueryStride = D * 2 + 16;            // eight rows of it lie in different banks
  static constexpr int kQueryBytes = ROWS * kQueryStride;    // twice: this chunk's and the next one's
  static constexpr int kSharedBytes = kStages * kStageBytes + kJoinFloats * 4 + 2 * kQueryBytes +
                                      2 * 2 * 4 * 16 * 4 + kQueue * sizeof(DecodeChunk) + 2 * (kStages + kQueue) * 8;
};

// A CTA's shared memory.
template <int D, int ROWS, bool FP8>
struct Shared {
  using C = Config<D, ROWS, FP8>;
  char* stages;
  float* join;                 // [kJoinSlots][ROWS][D]
  char* query;                 // [2][kQueryBytes]
  float* row_state;            // [2][maxima, sums][4][16], by turns
  DecodeChunk* queue;          // [kQueue], num_blocks 0: no more
  uint64_t *full, *empty;      // [kStages]
  uint64_t *queue_full, *queue_empty;
  __device__ explicit Shared(char* base) {
    stages = base;
    join = reinterpret_cast<float*>(stages + C::kStages * C::kStageBytes);
    query = reinterpret_cast<char*>(join + C::kJoinFloats);
    row_state = reinterpret_cast<float*>(query + 2 * C::kQueryBytes);
    queue = reinterpret_cast<DecodeChunk*>(row_state + 2 * 2 * 4 * 16);
    full = reinterpret_cast<uint64_t*>(queue + kQueue);
    empty = full + C::kStages;
    queue_full = empty + C::kStages;
    queue_empty = queue_full + kQueue;
  }
};

// Both places for queries begin as zeros: what pads a group or head_dim is never written again.
template <int D, int ROWS, bool FP8>
__device__ void clear_queries(const Shared<D, ROWS, FP8>& shared) {
  auto* words = reinterpret_cast<uint4*>(shared.query);
  using C = Config<D, ROWS, FP8>;
  for (int i = threadIdx.x; i < 2 * C::kQueryBytes / 16; i += C::kThreads) words[i] = uint4{};
  ptx::async_fence();  // bulk copies write there next
}

template <int D, int ROWS, bool FP8>
__device__ void produce(const DecodeParams& p, const Shared<D, ROWS, FP8>& shared, int lane) {
  using C = Config<D, ROWS, FP8>;
  const int num_chunks = p.plan->num_chunks, group = p.q_heads / p.kv_heads;
  auto* ticket = reinterpret_cast<unsigned*>(const_cast<unsigned char*>(plan_at(p.plan, kTicketsAt))) + p.launch_index;
  // Lane 0 takes the ticket of the chunk after next and loads the next chunk while it issues this one.
  const int grid = p.helped_ctas > 0 ? p.helped_ctas : static_cast<int>(gridDim.x);  // whose CTAs begin with the chunk of their index
  auto draw = [&] { return num_chunks > grid ? static_cast<int>(grid + atomicAdd(ticket, 1u)) : num_chunks; };
  auto load = [&](int index) {
    DecodeChunk c;
    c.num_blocks = 0;
    if (index < num_chunks) c = plan_chunks(p.plan)[index];
    return c;
  };
  int stage = 0, place = 0;
  uint32_t phase = 1, queue_phase = 1;  // ring and queue start empty
  DecodeChunk next;
  int after = num_chunks;
  if (lane == 0) {
    const int first = p.helped_ctas > 0 ? draw() : static_cast<int>(blockIdx.x);
    next = load(first);
    after = first < num_chunks ? draw() : num_chunks;
  }
  for (;;) {
    ptx::mbarrier_wait(shared.queue_empty + place, queue_phase);
    const DecodeChunk* c = shared.queue + place;
    if (lane == 0) {
      shared.queue[place] = next;
      ptx::mbarrier_expect(shared.queue_full + place, next.num_blocks > 0 ? group * p.head_dim * 2 : 0);
    }
    __syncwarp();
    const int num_blocks = c->num_blocks;
    if (num_blocks == 0) return;
    if (lane < group) {  // a lane asks for one query head
      const __nv_bfloat16* q = p.q + (int64_t{c->row} * p.q_heads + c->head * group + lane) * p.head_dim;
      ptx::bulk_copy(shared.query + place * C::kQueryBytes + lane * C::kQueryStride, q, p.head_dim * 2, shared.queue_full + place);
    }
    if (lane == 0) {
      next = load(after);
      if (after < num_chunks) after = draw();
      const int32_t* table = p.block_table + c->slot * p.table_stride + c->first_block;
      const char* head = static_cast<const char*>(p.pool) + c->head * kv_tile_values(D) * C::kValueBytes;
      const int64_t block_bytes = p.kv_heads * kv_tile_values(D) * C::kValueBytes;
      int32_t ahead = num_blocks > kChunkIds ? table[kChunkIds] : 0;  // ids are asked for one tile early
      for (int b = 0; b < num_blocks; ++b) {
        int64_t block = ahead;
        if (b < kChunkIds) {
          block = c->ids[b];
        } else if (b + 1 < num_blocks) {
          ahead = table[b + 1];
        }
#pragma unroll 1
        for (int part = 0; part < 2 * C::kParts; ++part) {
          ptx::mbarrier_wait(shared.empty + stage, phase);
          ptx::mbarrier_expect(shared.full + stage, C::kStageBytes);
          ptx::bulk_copy(shared.stages + stage * C::kStageBytes, head + block * block_bytes + part * C::kStageBytes,
                         C::kStageBytes, shared.full + stage);
          if (++stage == C::kStages) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
    if (++place == kQueue) place = 0, queue_phase ^= 1;
  }
}

// A warp's running softmax over its keys: rows (query heads) lane / 4 and lane / 4 + 8.
template <int OUT_DIMS>
struct State {
  float out[OUT_DIMS / 8][4];
  float maximum[2], denominator[2];

  __device__ void reset() {
#pragma unroll
    for (auto& o : out) o[0] = o[1] = o[2] = o[3] = 0;
    maximum[0] = maximum[1] = -INFINITY;
    denominator[0] = denominator[1] = 0;
  }
};

// Adds to scores [16 heads, 16 keys] what DIMS dims contribute. ldmatrix x4: keys 0-7 and 8-15 by dims 0-7 and 8-15 of a k-step.
// a: the queries' fragments of these dims if they are kept in registers (KEPT), else loaded here.
template <int DIMS, int ROWS, int STRIDE, bool KEPT>
__device__ __forceinline__ void add_scores(float (&s)[2][4], uint32_t k_base, uint32_t q_base, const uint32_t (*kept)[4],
                                           int key0, int lane) {
  const int key = key0 + (lane & 7) + ((lane >> 4) << 3);
  const int dim_half = ((lane >> 3) & 1) * 8;
  const int q_row = lane & (ROWS - 1), q_half = (lane >> 4) * 8;  // with 8 rows the upper half repeats the lower, unused
#pragma unroll
  for (int d = 0; d < DIMS; d += 16) {
    uint32_t a[4], b[4];
    if constexpr (KEPT) {
      a[0] = kept[d / 16][0], a[1] = kept[d / 16][1], a[2] = kept[d / 16][2], a[3] = kept[d / 16][3];
    } else {
      ptx::ldmatrix_x4(a, q_base + q_row * STRIDE + (d + q_half) * 2);
    }
    ptx::ldmatrix_x4(b, k_base + swizzled(key, d + dim_half) * 2);
    ptx::mma_bf16(s[0], a, b[0], b[1]);
    ptx::mma_bf16(s[1], a, b[2], b[3]);
  }
}

// Scales to log2 units, caps, and masks keys outside [first_key, kv_len) where the warp's 16 keys are not all inside.
__device__ __forceinline__ void finish_scores(float (&s)[2][4], const DecodeParams& p, int key_at, int first_key,
                                              int kv_len, int lane) {
  const float scale = p.softcap > 0 ? p.scale : p.scale * ptx::kLog2e;
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= scale;
  if (p.softcap > 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = p.softcap * tanhf(s[i / 4][i % 4] / p.softcap) * ptx::kLog2e;
  }
  if (key_at >= first_key && key_at + kKeysPerWarp <= kv_len) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = key_at + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
    if (key < first_key || key >= kv_len) s[i / 4][i % 4] = -INFINITY;
  }
}

// Takes the keys' maximum into the state and turns scores into the probabilities' A fragment.
template <bool FP8, int OUT_DIMS>
__device__ __forceinline__ void soften(State<OUT_DIMS>& state, float (&s)[2][4], uint32_t (&prob)[4]) {
  bool rescale = false;
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float top = ptx::quad_max(fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1])));
    const float maximum = fmaxf(state.maximum[h], FP8 ? top - fp8::kLift : top);
    // Two partials of -inf have weight 0, never exp(-inf - -inf).
    factor[h] = state.maximum[h] == -INFINITY ? 0.0f : ptx::exp2(state.maximum[h] - maximum);
    rescale |= maximum != state.maximum[h];
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    const float p0 = ptx::exp2(s[0][2 * h] - base), p1 = ptx::exp2(s[0][2 * h + 1] - base);
    const float p2 = ptx::exp2(s[1][2 * h] - base), p3 = ptx::exp2(s[1][2 * h + 1] - base);
    state.denominator[h] = state.denominator[h] * factor[h] + (p0 + p1) + (p2 + p3);  // summed over the quad at the end
    state.maximum[h] = maximum;
    prob[h] = FP8 ? fp8::pack_half(p0, p1) : ptx::pack_bf16(p0, p1);
    prob[2 + h] = FP8 ? fp8::pack_half(p2, p3) : ptx::pack_bf16(p2, p3);
  }
  if (__any_sync(~0u, rescale)) {
#pragma unroll
    for (auto& o : state.out) {
      o[0] *= factor[0], o[1] *= factor[0];
      o[2] *= factor[1], o[3] *= factor[1];
    }
  }
}

template <int OUT_DIMS>
__device__ __forceinline__ void accumulate(State<OUT_DIMS>& state, const uint32_t (&prob)[4], uint32_t v_base, int key0, int lane) {
  const int key = key0 + (lane & 15);
  const int half = (lane >> 4) * 8;
#pragma unroll
  for (int d = 0; d < OUT_DIMS; d += 16) {
    uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, v_base + swizzled(key, d + half) * 2);
    ptx::mma_bf16(state.out[d / 8], prob, b[0], b[1]);
    ptx::mma_bf16(state.out[d / 8 + 1], prob, b[2], b[3]);
  }
}

// Joins the key-warps' states: returns with kJoinSlots (scaled) outputs in shared.join and, in every thread, the maximum and
// denominator of its rows. The caller sums the slots.
template <int D, int ROWS, bool FP8>
__device__ void join_warps(State<Config<D, ROWS, FP8>::kOutDims>& state, const Shared<D, ROWS, FP8>& shared, int turn,
                           int warp, int lane) {
  using C = Config<D, ROWS, FP8>;
  const int keys = warp / C::kDimSplit, half = warp % C::kDimSplit;
  float* maxima = shared.row_state + turn * 128;  // [4][16]
  float* sums = maxima + 64;                      // [4][16]
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.denominator[h] = ptx::quad_sum(state.denominator[h]);
    if ((lane & 3) == 0 && half == 0) {
      maxima[keys * 16 + h * 8 + lane / 4] = state.maximum[h];
      sums[keys * 16 + h * 8 + lane / 4] = state.denominator[h];
    }
  }
  ptx::named_barrier(1, C::kConsumers);
#pragma unroll
  for (int h = 0; h < ROWS / 8; ++h) {
    const int row = h * 8 + lane / 4;
    float maximum = -INFINITY;
    for (int w = 0; w < 4; ++w) maximum = fmaxf(maximum, maxima[w * 16 + row]);
    const float factor = state.maximum[h] == -INFINITY ? 0.0f : ptx::exp2(state.maximum[h] - maximum);
#pragma unroll
    for (auto& o : state.out) o[2 * h] *= factor, o[2 * h + 1] *= factor;
  }
  auto slot = [&](int n, int h) {
    return reinterpret_cast<float2*>(shared.join + ((keys % C::kJoinSlots) * ROWS + h * 8 + lane / 4) * D + half * C::kOutDims +
                                     (FP8 ? fp8::out_dim(n, lane) : n * 8 + (lane & 3) * 2));
  };
  if (keys >= 4 - C::kJoinSlots) {
#pragma unroll
    for (int n = 0; n < C::kOutDims / 8; ++n) {
#pragma unroll
      for (int h = 0; h < ROWS / 8; ++h) *slot(n, h) = make_float2(state.out[n][2 * h], state.out[n][2 * h + 1]);
    }
  }
  ptx::named_barrier(1, C::kConsumers);
  if (C::kJoinSlots == 4) return;
  if (keys < 2) {
#pragma unroll
    for (int n = 0; n < C::kOutDims / 8; ++n) {
#pragma unroll
      for (int h = 0; h < ROWS / 8; ++h) {
        float2* v = slot(n, h);
        *v = make_float2(v->x + state.out[n][2 * h], v->y + state.out[n][2 * h + 1]);
      }
    }
  }
  ptx::named_barrier(1, C::kConsumers);
}

// The denominator with the head's sink, for a known maximum (which then includes the sink too).
__device__ __forceinline__ float with_sink(float denominator, float* maximum, const float* sinks, int head) {
  if (!sinks) return denominator;
  const float sink = sinks[head] * ptx::kLog2e;
  const float top = fmaxf(*maximum, sink);
  denominator = (*maximum == -INFINITY ? 0.0f : denominator * ptx::exp2(*maximum - top)) + ptx::exp2(sink - top);
  *maximum = top;
  return denominator;
}

// Normalises four dims of a head, sink included, and writes them.
__device__ __forceinline__ void write_out(const DecodeParams& p, int row, int kv_head, int g, int d, float4 o, float maximum,
                                          float denominator) {
  const int head = kv_head * (p.q_heads / p.kv_heads) + g;
  float top = maximum;
  denominator = with_sink(denominator, &top, p.sinks, head);
  const float inverse = (maximum == -INFINITY ? 0.0f : ptx::exp2(maximum - top)) / denominator;
  __nv_bfloat16* out = p.out + (int64_t{row} * p.q_heads + head) * p.head_dim + d;
  *reinterpret_cast<uint2*>(out) = make_uint2(ptx::pack_bf16(o.x * inverse, o.y * inverse), ptx::pack_bf16(o.z * inverse, o.w * inverse));
}

// Sums the join slots and writes a unit that is one chunk, or the chunk's partial.
template <int D, int ROWS, bool FP8>
__device__ void write_chunk(const DecodeParams& p, const DecodeChunk& c, int partial, const Shared<D, ROWS, FP8>& shared, int turn,
                            int thread) {
  using C = Config<D, ROWS, FP8>;
  const int group = p.q_heads / p.kv_heads;
  const float* maxima = shared.row_state + turn * 128;
  const float* sums = maxima + 64;
  for (int i = thread; i < group * (D / 4); i += C::kConsumers) {
    const int g = i / (D / 4), d = i % (D / 4) * 4;
    float maximum = -INFINITY, denominator = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) maximum = fmaxf(maximum, maxima[w * 16 + g]);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float m = maxima[w * 16 + g];
      denominator += m == -INFINITY ? 0.0f : sums[w * 16 + g] * ptx::exp2(m - maximum);
    }
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < C::kJoinSlots; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(shared.join + (w * ROWS + g) * D + d);
      o.x += v.x, o.y += v.y, o.z += v.z, o.w += v.w;
    }
    if (c.unit_chunks > 1) {
      *reinterpret_cast<float4*>(p.partial_out + (int64_t{partial} * 16 + g) * D + d) = o;
      if (d == 0) p.partial_ml[partial * 16 + g] = make_float2(maximum, denominator);
    } else if (d < p.head_dim) {
      write_out(p, c.row, c.head, g, d, o, maximum, denominator);
    }
  }
}

// Slice `slice` of `slices` of a unit's outputs, from its partials [first, first + n).
template <int D, int ROWS, bool FP8>
__device__ void merge_slice(const DecodeParams& p, int row, int kv_head, int first, int n, int slice, int slices, int thread) {
  constexpr int kThreads = Config<D, ROWS, FP8>::kConsumers;
  const int quads = p.q_heads / p.kv_heads * (D / 4);
  const int low = quads * slice / slices, high = quads * (slice + 1) / slices;
  int lanes = 1;  // threads that share a quad's partials
  while (lanes < n && lanes < 32 && (high - low) * lanes < kThreads) lanes *= 2;
  const int lane = thread % lanes;
  for (int base = low; base < high; base += kThreads / lanes) {
    const int quad = base + thread / lanes;
    const bool active = quad < high;
    const int g = active ? quad / (D / 4) : 0, d = active ? quad % (D / 4) * 4 : 0;
    float maximum = -INFINITY, denominator = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    auto take = [&](float m, float l, float4 o) {
      if (m == -INFINITY) return;
      const float top = fmaxf(maximum, m);
      const float before = maximum == -INFINITY ? 0.0f : ptx::exp2(maximum - top), weight = ptx::exp2(m - top);
      denominator = denominator * before + l * weight;
      sum.x = sum.x * before + o.x * weight, sum.y = sum.y * before + o.y * weight;
      sum.z = sum.z * before + o.z * weight, sum.w = sum.w * before + o.w * weight;
      maximum = top;
    };
    constexpr int kAhead = 8;  // partials whose loads are in flight together
    for (int i = lane; i < n; i += kAhead * lanes) {
      float2 ml[kAhead];
      float4 o[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t at = int64_t{first + min(i + k * lanes, n - 1)} * 16 + g;
        ml[k] = p.partial_ml[at];
        o[k] = *reinterpret_cast<const float4*>(p.partial_out + at * D + d);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (i + k * lanes < n) take(ml[k].x, ml[k].y, o[k]);
      }
    }
    for (int x = 1; x < lanes; x *= 2) {
      const float m = __shfl_xor_sync(~0u, maximum, x), l = __shfl_xor_sync(~0u, denominator, x);
      const float4 o = make_float4(__shfl_xor_sync(~0u, sum.x, x), __shfl_xor_sync(~0u, sum.y, x),
                                   __shfl_xor_sync(~0u, sum.z, x), __shfl_xor_sync(~0u, sum.w, x));
      take(m, l, o);
    }
    if (active && lane == 0 && d < p.head_dim) write_out(p, row, kv_head, g, d, sum, maximum, denominator);
  }
}

// This CTA's share of the merging: tasks (unit, slice) dealt out in turn, about one a CTA.
template <int D, int ROWS, bool FP8>
__device__ void merge(const DecodeParams& p, unsigned long long epoch, int thread) {
  const int num_rows = p.plan->num_rows;
  const auto* row_first = reinterpret_cast<const int32_t*>(plan_at(p.plan, kRowFirstAt));
  const int units = num_rows * p.kv_heads;
  const int slices = max(1, min(static_cast<int>(gridDim.x) / units, p.q_heads / p.kv_heads * (D / 4) / 4));
  for (int task = blockIdx.x; task < units * slices; task += gridDim.x) {
    const int unit = task / slices, row = unit / p.kv_heads, head = unit % p.kv_heads;
    const int n = (row_first[row + 1] - row_first[row]) / p.kv_heads;
    if (n <= 1) continue;
    const int first = row_first[row] + head * n;
    for (int i = thread; i < n; i += Config<D, ROWS, FP8>::kConsumers) {
      while (ptx::load_acquire(p.done + first + i) != epoch) {
      }
    }
    ptx::named_barrier(1, Config<D, ROWS, FP8>::kConsumers);
    merge_slice<D, ROWS, FP8>(p, row, head, first, n, task % slices, slices, thread);
  }
}

template <int D, int ROWS, bool FP8>
__device__ void consume(const DecodeParams& p, const Shared<D, ROWS, FP8>& shared, unsigned long long epoch) {
  using C = Config<D, ROWS, FP8>;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int key0 = warp / C::kDimSplit * kKeysPerWarp;
  constexpr bool kKept = D <= 128;
  int stage = 0, place = 0;
  uint32_t phase = 0, queue_phase = 0;
  // Places are given back by every lane: racecheck does not follow a __syncwarp, and it costs nothing that shows.
  auto advance = [&] {
    ptx::mbarrier_arrive(shared.empty + stage);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  };
  for (;;) {
    ptx::mbarrier_wait(shared.queue_full + place, queue_phase);
    const DecodeChunk c = shared.queue[place];
    if (c.num_blocks == 0) break;
    const uint32_t q_base = ptx::smem_address(shared.query + place * C::kQueryBytes);
    uint32_t kept[kKept ? D / 16 : 1][4];
    if constexpr (kKept && FP8) {
#pragma unroll
      for (int d = 0; d < D; d += 64) fp8::load_queries<ROWS>(kept + d / 16, q_base + d * 2, C::kQueryStride, lane);
    } else if constexpr (kKept) {
#pragma unroll
      for (int d = 0; d < D; d += 16) {
        ptx::ldmatrix_x4(kept[d / 16], q_base + (lane & (ROWS - 1)) * C::kQueryStride + (d + (lane >> 4) * 8) * 2);
      }
    }
    State<C::kOutDims> state;
    state.reset();
    const int first_key = first_visible(c.kv_len, p.window);
    int key_at = c.first_block * kBlockTokens + key0;
    for (int b = 0; b < c.num_blocks; ++b, key_at += kBlockTokens) {
      float scores[2][4] = {};
#pragma unroll
      for (int part = 0; part < C::kParts; ++part) {
        ptx::mbarrier_wait(shared.full + stage, phase);
        const uint32_t keys = ptx::smem_address(shared.stages + stage * C::kStageBytes);
        const uint32_t queries = q_base + part * C::kPartDims * 2;
        if constexpr (FP8) {
#pragma unroll
          for (int d = 0; d < C::kPartDims; d += 64) {
            uint32_t loaded[4][4];
            if constexpr (!kKept) fp8::load_queries<ROWS>(loaded, queries + d * 2, C::kQueryStride, lane);
            fp8::add_scores(scores[0], scores[1], kKept ? kept + d / 16 : loaded, keys + d * kBlockTokens, key0, lane);
          }
        } else {
          add_scores<C::kPartDims, ROWS, C::kQueryStride, kKept>(scores, keys, queries, kept, key0, lane);
        }
        advance();
      }
      finish_scores(scores, p, key_at, first_key, c.kv_len, lane);
      uint32_t prob[4];
      soften<FP8>(state, scores, prob);
#pragma unroll
      for (int part = 0; part < C::kParts; ++part) {
        ptx::mbarrier_wait(shared.full + stage, phase);
        if (part == warp % C::kDimSplit) {
          const uint32_t values = ptx::smem_address(shared.stages + stage * C::kStageBytes);
          if constexpr (FP8) {
#pragma unroll
            for (int d = 0; d < C::kOutDims; d += 32) fp8::accumulate_32(state.out + d / 8, prob, values, d, key0, lane);
          } else {
            accumulate(state, prob, values, key0, lane);
          }
        }
        advance();
      }
    }
    if constexpr (FP8) fp8::order_outputs(state.out);
    join_warps<D, ROWS, FP8>(state, shared, place, warp, lane);
    const int index = c.unit_first + c.chunk;
    write_chunk<D, ROWS, FP8>(p, c, index, shared, place, thread);
    if (c.unit_chunks > 1) {
      ptx::named_barrier(1, C::kConsumers);
      if (thread == 0) {
        __threadfence();
        ptx::store_release(p.done + index, epoch);
      }
    }
    ptx::mbarrier_arrive(shared.queue_empty + place);
    if (++place == kQueue) place = 0, queue_phase ^= 1;
  }
  // What follows late CTAs on their stream follows the kernel before them, too.
  if (p.helped_ctas > 0) return ptx::wait_for_previous_kernel();
  merge<D, ROWS, FP8>(p, epoch, thread);
}

template <int D, int ROWS, bool FP8>
__global__ void __launch_bounds__(Config<D, ROWS, FP8>::kThreads, Config<D, ROWS, FP8>::kMinCtas)
decode_kernel(const __grid_constant__ DecodeParams p) {
  using C = Config<D, ROWS, FP8>;
  extern __shared__ __align__(1024) char memory[];
  const Shared<D, ROWS, FP8> shared(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(shared.full + i, 1);
      ptx::mbarrier_init(shared.empty + i, C::kConsumers);
    }
    for (int i = 0; i < kQueue; ++i) {
      ptx::mbarrier_init(shared.queue_full + i, 1);
      ptx::mbarrier_init(shared.queue_empty + i, C::kConsumers);
    }
    ptx::mbarrier_init_fence();
  }
  clear_queries(shared);
  __syncthreads();
  if (p.helped_ctas == 0) ptx::wait_for_previous_kernel();  // late CTAs start when the kernel before has waited for all that they read
  if (threadIdx.x / 32 >= C::kWarps) {
    if constexpr (D > 256) ptx::registers_down<40>();
    if (threadIdx.x / 32 == C::kWarps) produce<D, ROWS, FP8>(p, shared, threadIdx.x % 32);
  } else {
    if constexpr (D > 256) ptx::registers_up<232>();
    consume<D, ROWS, FP8>(p, shared, *p.epoch * kMaxLaunches + p.launch_index + 1);
  }
}

template <int D, int ROWS, bool FP8>
cudaError_t prepare_kernel() {
  const cudaError_t error =
      cudaFuncSetAttribute(decode_kernel<D, ROWS, FP8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Config<D, ROWS, FP8>::kSharedBytes);
  // As extend does, so that both fit on one SM at head_dim 64.
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(decode_kernel<D, ROWS, FP8>, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <int D, int ROWS, bool FP8>
int resident_ctas() {
  static const int resident = [] {
    if (prepare_kernel<D, ROWS, FP8>() != cudaSuccess) return 0;
    int device = 0, sms = 0, per_sm = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, decode_kernel<D, ROWS, FP8>, Config<D, ROWS, FP8>::kThreads,
                                                  Config<D, ROWS, FP8>::kSharedBytes);
    return sms * per_sm;
  }();
  return resident;
}

template <int D, int ROWS, bool FP8>
cudaError_t launch(const DecodeParams& p, int ctas, cudaStream_t stream) {
  using C = Config<D, ROWS, FP8>;
  return launch_overlapped(decode_kernel<D, ROWS, FP8>, ctas, C::kThreads, C::kSharedBytes, stream, p);
}

// Calls f.template operator()<D, ROWS>() for the shape.
template <typename F>
auto dispatch(int head_dim, int group, F f) {
  const int dim = padded_dim(head_dim);
  if (dim == 64) return group <= 8 ? f.template operator()<64, 8>() : f.template operator()<64, 16>();
  if (dim == 128) return group <= 8 ? f.template operator()<128, 8>() : f.template operator()<128, 16>();
  if (dim == 256) return group <= 8 ? f.template operator()<256, 8>() : f.template operator()<256, 16>();
  return f.template operator()<512, 8>();
}

template <bool FP8>
int ctas_of(int head_dim, int group) {
  return dispatch(head_dim, group, [=]<int D, int ROWS>() { return resident_ctas<D, ROWS, FP8>(); });
}

template <bool FP8>
MixedTuning mixed_of(int head_dim, int group) {
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const int dim = padded_dim(head_dim), resident = ctas_of<FP8>(head_dim, group);
  const bool shares_sms = dim == 64 && !FP8;  // with extend's CTAs
  return {.decode_ctas = std::min(resident, shares_sms ? sms : sms / 2), .chunks_per_cta = 2,
          .beside_tiles = 0};
}

template <bool FP8>
cudaError_t run(const DecodeParams& p, int ctas, cudaStream_t stream) {
  return dispatch(p.head_dim, p.q_heads / p.kv_heads,
                  [&]<int D, int ROWS>() { return launch<D, ROWS, FP8>(p, ctas, stream); });
}

}  // namespace
}  // namespace tailrace::cuda
