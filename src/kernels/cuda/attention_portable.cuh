// Attention with what every GPU since 8.0 has: o = softmax(scale q K^T) V by cp.async and mma.sync.
//
// Mapping. Both kernels walk KV tiles of 64 tokens for packed query rows (token, head of the group), 16 rows a warp.
// Extend: a CTA has 64 rows of one KV head, a warp 16 of them and all keys; decode: a CTA has a chunk of the plan
// (attention_decode.h) and up to 16 rows, a warp a quarter of the keys, and the warps' softmaxes are joined at the
// end. At head_dim 512 pairs of warps share rows and keys and split the output dims.
// A tile arrives as slices of 64 dims, K's and then V's, through a ring that all warps walk in step. The pool is
// stored swizzled (kv_layout.h), so a slice is a plain copy and ldmatrix finds no bank conflicts.
// Decode's chunks leave partials (o, m, l) that a second kernel merges: nothing waits within a kernel, so the grid
// need not be resident. Sinks join there, or where a unit has one chunk: once, unscaled, in log2 units.
// FP8: a pool of e4m3 is read as operands in f16 (attention_fp8.cuh); queries are then converted as they enter shared memory.
// Bound: decode by KV bytes, extend by mma.sync's FLOPs.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_fp8.cuh"
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/attention_portable.h"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {
namespace {

// D: padded head_dim. DECODE: 16 rows and four groups of keys, else 64 rows and one.
template <int D, bool DECODE, bool FP8>
struct Config {
  static constexpr bool kFp8 = FP8;
  static constexpr int kSliceBytes = kBlockTokens * 64 * (FP8 ? 1 : 2);  // 64 dims of a tile's K or V
  static constexpr int kDimWarps = D > 256 ? 2 : 1;         // warps that share rows and keys
  static constexpr int kKeyWarps = DECODE ? 4 : 1, kRowWarps = DECODE ? 1 : 4;
  static constexpr int kWarps = 4 * kDimWarps, kThreads = kWarps * 32;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr int kKeys = kBlockTokens / kKeyWarps;    // of a warp
  static constexpr int kOutDims = D / kDimWarps;            // of a warp
  static constexpr int kSteps = D / 64 / kDimWarps;         // ring stages of K in a tile, and as many of V
  static constexpr int kStageBytes = kSliceBytes * kDimWarps;
  static constexpr int kStages = (D > 256 ? (DECODE ? 4 : 2) : DECODE ? 5 : D == 256 ? 6 : 4) * (FP8 ? 2 : 1);
  static constexpr int kQueryBytes = kRows * D * 2;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes;  // decode's joins reuse the ring
  static constexpr int kCtasPerSm = kSharedBytes <= 49 * 1024 ? 2 : 1;
  static_assert(kSharedBytes <= 99 * 1024 && kStages >= 2 && (!DECODE || kStages * kStageBytes >= 16 * D * 4));
};

// Packed rows of one KV head and the blocks that they see.
struct Work {
  int slot, head;
  int q_len, kv_len;
  int64_t first_token;          // of the row, in q and out
  int first_row, num_rows;      // of the tile among the row's q_len * group packed rows; rows there are in all
  int first_block, num_blocks;  // block-table entries
};

// Offset in q and out of a packed row of the work.
template <class P>
__device__ __forceinline__ int64_t row_offset(const P& p, const Work& w, int row) {
  const int group = p.q_heads / p.kv_heads;
  return ((w.first_token + row / group) * p.q_heads + w.head * group + row % group) * int64_t{p.head_dim};
}

// Byte offset in the query tile, [dim / 64][row][64] and swizzled as the pool is.
template <int ROWS>
__device__ __forceinline__ int query_at(int row, int d) {
  return (d >> 6) * (ROWS * 128) + row * 128 + ((((d & 63) >> 3) ^ (row & 7)) << 4);
}

// Asks for the queries; zero beyond the work's rows and head_dim. FP8: loads them, as f16, and in the order of dims that
// fp8::add_scores takes.
template <class C, int D, class P>
__device__ void request_query(const P& p, const Work& w, char* query) {
  for (int i = threadIdx.x; i < C::kRows * D / 8; i += C::kThreads) {
    const int row = i / (D / 8), d = i % (D / 8) * 8;
    const bool real = w.first_row + row < w.num_rows && d < p.head_dim;
    const __nv_bfloat16* from = p.q + (real ? row_offset(p, w, w.first_row + row) + d : 0);
    if constexpr (C::kFp8) {
      const uint4 v = real ? *reinterpret_cast<const uint4*>(from) : uint4{};
      const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int to = d / 64 * 64 + (d % 16 * 4 + i / 2 * 16) + d % 64 / 16 * 2 + i % 2 * 8;
        *reinterpret_cast<uint32_t*>(query + query_at<C::kRows>(row, to) + to % 8 * 2) = fp8::halves_of_bf16(pairs[i]);
      }
    } else {
      ptx::copy_16(query + query_at<C::kRows>(row, d), from, real);
    }
  }
}

// The ring: stage n of the work is K's (n % 2 steps < steps) or V's slices of tile n / (2 kSteps).
template <class C, int D, class P>
struct Ring {
  static constexpr int64_t kTileBytes = int64_t{2} * C::kSliceBytes * (D / 64);
  char* stages;
  const int32_t* table;       // of the work's next tile to be asked for
  const char* head;           // of the pool: this KV head's tile of block 0
  int64_t block_bytes;
  int left;                   // tiles to be asked for, the one under way included
  int32_t block, next_block;  // ids are asked for one tile early
  int step = 0, write = 0, read = 0;

  __device__ Ring(const P& p, const Work& w, char* stages)
      : stages(stages), table(p.block_table + w.slot * p.table_stride + w.first_block),
        head(static_cast<const char*>(p.pool) + w.head * kTileBytes), block_bytes(p.kv_heads * kTileBytes),
        left(w.num_blocks) {
    block = left > 0 ? table[0] : 0;
    next_block = left > 1 ? table[1] : 0;
  }

  // Asks for the next stage if there is one; a group of copies either way.
  __device__ __forceinline__ void request() {
    if (left > 0) {
      const bool is_v = step >= C::kSteps;
      const char* tile = head + block * block_bytes + (is_v ? kTileBytes / 2 : 0);
      const int at = is_v ? step - C::kSteps : step;
      char* to = stages + write * C::kStageBytes;
#pragma unroll
      for (int i = 0; i < C::kStageBytes / 16 / C::kThreads; ++i) {
        const int piece = i * C::kThreads + static_cast<int>(threadIdx.x), half = piece / (C::kSliceBytes / 16);
        // K's slices in order; V's so that each half of the output dims gets one.
        const int slice = is_v ? half * C::kSteps + at : at * C::kDimWarps + half;
        ptx::copy_16_to(ptx::smem_address(to) + piece * 16,
                        tile + slice * C::kSliceBytes + piece % (C::kSliceBytes / 16) * 16);
      }
      if (++write == C::kStages) write = 0;
      if (++step == 2 * C::kSteps) {
        step = 0, --left, ++table;
        block = next_block;
        next_block = left > 1 ? table[1] : 0;
      }
    }
    ptx::copy_commit();
  }

  // Waits for the next stage, and asks for one in the place of the stage before, which all warps have then left.
  __device__ __forceinline__ uint32_t acquire() {
    ptx::copy_wait_but<C::kStages - 2>();
    __syncthreads();
    const uint32_t at = ptx::smem_address(stages) + read * C::kStageBytes;
    request();
    if (++read == C::kStages) read = 0;
    return at;
  }
};

// A warp's running softmax: rows lane / 4 and lane / 4 + 8 of its 16.
template <class C>
struct State {
  float out[C::kOutDims / 8][4];
  float maximum[2], denominator[2];  // log2; the denominator is summed over the quad at the end
};

// The first of the two dims of fragment n, in a row of a lane.
template <class C>
__device__ __forceinline__ int out_dim(int n, int lane) {
  return C::kFp8 ? fp8::out_dim(n, lane) : n * 8 + (lane & 3) * 2;
}

// Scores += what 64 dims of queries and keys contribute.
template <class C>
__device__ __forceinline__ void add_scores(float (&s)[C::kKeys / 8][4], uint32_t keys, uint32_t query, int d0,
                                           int row0, int key0, int lane) {
  if constexpr (C::kFp8) {
    uint32_t a[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      ptx::ldmatrix_x4(a[j], query + query_at<C::kRows>(row0 + (lane & 15), d0 + j * 16 + (lane >> 4) * 8));
    }
#pragma unroll
    for (int k = 0; k < C::kKeys; k += 16) fp8::add_scores(s[k / 8], s[k / 8 + 1], a, keys, key0 + k, lane);
  } else {
#pragma unroll
    for (int d = 0; d < 64; d += 16) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, query + query_at<C::kRows>(row0 + (lane & 15), d0 + d + (lane >> 4) * 8));
#pragma unroll
      for (int k = 0; k < C::kKeys; k += 16) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, keys + swizzled(key0 + k + (lane & 7) + ((lane >> 4) << 3), d + ((lane >> 3) & 1) * 8) * 2);
        ptx::mma_bf16(s[k / 8], a, b[0], b[1]);
        ptx::mma_bf16(s[k / 8 + 1], a, b[2], b[3]);
      }
    }
  }
}

// To log2 units, capped; -inf for keys that a row does not see. low, high: a row's first and last key.
template <class C, class P>
__device__ __forceinline__ void finish_scores(float (&s)[C::kKeys / 8][4], const P& p, int key_at, const int (&low)[2],
                                              const int (&high)[2], bool inside, int lane) {
  const float scale = p.softcap > 0 ? p.scale : p.scale * ptx::kLog2e;
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) {
    float& v = s[i / 4][i % 4];
    v *= scale;
    if (p.softcap > 0) v = p.softcap * tanhf(v / p.softcap) * ptx::kLog2e;
  }
  if (inside) return;
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) {
    const int key = key_at + i / 4 * 8 + (lane & 3) * 2 + (i & 1), h = i % 4 / 2;
    if (key < low[h] || key > high[h]) s[i / 4][i % 4] = -INFINITY;
  }
}

// Takes the keys' maximum into the state and turns scores into the probabilities' A fragments.
template <class C>
__device__ __forceinline__ void soften(State<C>& state, float (&s)[C::kKeys / 8][4],
                                       uint32_t (&prob)[C::kKeys / 16][4]) {
  float factor[2];
  bool rescale = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    const float maximum = fmaxf(state.maximum[h], ptx::quad_max(top) - (C::kFp8 ? fp8::kLift : 0.0f));
    // Two partials of -inf have weight 0, never exp(-inf - -inf).
    factor[h] = state.maximum[h] == -INFINITY ? 0.0f : ptx::exp2(state.maximum[h] - maximum);
    rescale |= maximum != state.maximum[h];
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n) {
      const float a = ptx::exp2(s[n][2 * h] - base), b = ptx::exp2(s[n][2 * h + 1] - base);
      sum += a + b;
      prob[n / 2][n % 2 * 2 + h] = C::kFp8 ? fp8::pack_half(a, b) : ptx::pack_bf16(a, b);
    }
    state.denominator[h] = state.denominator[h] * factor[h] + sum;
    state.maximum[h] = maximum;
  }
  if (!__any_sync(~0u, rescale)) return;
#pragma unroll
  for (auto& o : state.out) o[0] *= factor[0], o[1] *= factor[0], o[2] *= factor[1], o[3] *= factor[1];
}

// out[64 dims from n0 * 8 on] += prob V.
template <class C>
__device__ __forceinline__ void accumulate(State<C>& state, int n0, const uint32_t (&prob)[C::kKeys / 16][4],
                                           uint32_t values, int key0, int lane) {
#pragma unroll
  for (int k = 0; k < C::kKeys; k += 16) {
    if constexpr (C::kFp8) {
#pragma unroll
      for (int d = 0; d < 64; d += 32) {
        fp8::accumulate_32(state.out + n0 + d / 8, prob[k / 16], values, d, key0 + k, lane);
      }
    } else {
#pragma unroll
      for (int d = 0; d < 64; d += 16) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, values + swizzled(key0 + k + (lane & 15), d + (lane >> 4) * 8) * 2);
        ptx::mma_bf16(state.out[n0 + d / 8], prob[k / 16], b[0], b[1]);
        ptx::mma_bf16(state.out[n0 + d / 8 + 1], prob[k / 16], b[2], b[3]);
      }
    }
  }
}

// This warp's part of the work. All threads of the CTA; on return nobody reads shared memory any more and no copy is
// under way.
template <class C, int D, class P>
__device__ void attend(const P& p, const Work& w, char* shared, State<C>& state) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % C::kDimWarps, place = warp / C::kDimWarps;
  const int row0 = C::kRowWarps > 1 ? place * 16 : 0, key0 = C::kKeyWarps > 1 ? place * C::kKeys : 0;
  const int group = p.q_heads / p.kv_heads;
  request_query<C, D>(p, w, shared);
  Ring<C, D, P> ring(p, w, shared + C::kQueryBytes);
  for (int i = 0; i < C::kStages - 1; ++i) ring.request();

#pragma unroll
  for (auto& o : state.out) o[0] = o[1] = o[2] = o[3] = 0;
  int low[2], high[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.maximum[h] = -INFINITY, state.denominator[h] = 0;
    // Rows beyond the last see its keys.
    const int token = min((w.first_row + row0 + lane / 4 + 8 * h) / group, w.q_len - 1);
    high[h] = w.kv_len - w.q_len + token;
    low[h] = first_visible(high[h] + 1, p.window);
  }
  // What all of the warp's rows see: keys [all_low, all_high].
  const int before = w.kv_len - w.q_len, last_token = min((w.first_row + row0 + 15) / group, w.q_len - 1);
  const int all_high = before + min((w.first_row + row0) / group, w.q_len - 1);
  const int all_low = first_visible(before + last_token + 1, p.window);
  const uint32_t query = ptx::smem_address(shared);
  int key_at = w.first_block * kBlockTokens + key0;
  for (int b = 0; b < w.num_blocks; ++b, key_at += kBlockTokens) {
    float scores[C::kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      const uint32_t stage = ring.acquire();
#pragma unroll
      for (int i = 0; i < C::kDimWarps; ++i) {
        add_scores<C>(scores, stage + i * C::kSliceBytes, query, (step * C::kDimWarps + i) * 64, row0, key0, lane);
      }
    }
    finish_scores<C>(scores, p, key_at, low, high, key_at >= all_low && key_at + C::kKeys - 1 <= all_high, lane);
    uint32_t prob[C::kKeys / 16][4];
    soften(state, scores, prob);
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      const uint32_t stage = ring.acquire();
      accumulate(state, step * 8, prob, stage + half * C::kSliceBytes, key0, lane);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) state.denominator[h] = ptx::quad_sum(state.denominator[h]);
  if constexpr (C::kFp8) fp8::order_outputs(state.out);
  ptx::copy_wait();
  __syncthreads();
}

// The denominator with the head's sink, which raises the maximum where it is larger.
__device__ __forceinline__ float with_sink(float denominator, float* maximum, const float* sinks, int head) {
  if (!sinks) return denominator;
  const float sink = sinks[head] * ptx::kLog2e, top = fmaxf(*maximum, sink);
  denominator = (*maximum == -INFINITY ? 0.0f : denominator * ptx::exp2(*maximum - top)) + ptx::exp2(sink - top);
  *maximum = top;
  return denominator;
}

// What an output is multiplied by: relative to `maximum` before, normalised after.
__device__ __forceinline__ float norm_factor(float denominator, float maximum, const float* sinks, int head) {
  float top = maximum;
  const float whole = with_sink(denominator, &top, sinks, head);
  return maximum == -INFINITY || whole <= 0 ? 0.0f : ptx::exp2(maximum - top) / whole;
}

template <int D, bool FP8>
__global__ void __launch_bounds__(Config<D, false, FP8>::kThreads, Config<D, false, FP8>::kCtasPerSm)
extend_kernel(const __grid_constant__ ExtendParams p) {
  using C = Config<D, false, FP8>;
  extern __shared__ __align__(128) char shared[];
  const int group = p.q_heads / p.kv_heads;
  // A row's last tiles see the most keys: they go first.
  const int tile = p.num_tiles - 1 - static_cast<int>(blockIdx.x) / p.kv_heads;
  int r = 0, beyond = p.num_rows;
  while (beyond - r > 1) {  // tile_start[r] <= tile < tile_start[beyond]
    const int middle = (r + beyond) / 2;
    (p.tile_start[middle] <= tile ? r : beyond) = middle;
  }
  const BatchRow row = p.rows[r];
  Work w{.slot = row.slot, .head = static_cast<int>(blockIdx.x) % p.kv_heads, .q_len = row.q_len, .kv_len = row.kv_len,
         .first_token = row.q_start, .first_row = (tile - p.tile_start[r]) * C::kRows, .num_rows = row.q_len * group};
  const int first_token = w.first_row / group, last_token = min(w.first_row + C::kRows - 1, w.num_rows - 1) / group;
  const int before = row.kv_len - row.q_len;
  w.first_block = first_visible(before + first_token + 1, p.window) / kBlockTokens;
  w.num_blocks = (before + last_token) / kBlockTokens + 1 - w.first_block;
  State<C> state;
  attend<C, D>(p, w, shared, state);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int packed = w.first_row + warp / C::kDimWarps * 16 + h * 8 + lane / 4;
    if (packed >= w.num_rows) continue;
    const float factor = norm_factor(state.denominator[h], state.maximum[h], p.sinks, w.head * group + packed % group);
    __nv_bfloat16* out = p.out + row_offset(p, w, packed);
#pragma unroll
    for (int n = 0; n < C::kOutDims / 8; ++n) {
      const int d = warp % C::kDimWarps * C::kOutDims + out_dim<C>(n, lane);
      if (d >= p.head_dim) continue;
      *reinterpret_cast<uint32_t*>(out + d) =
          ptx::pack_bf16(state.out[n][2 * h] * factor, state.out[n][2 * h + 1] * factor);
    }
  }
}

// Joins the warps' states into join [16][D], relative to maxima[row], with sums[row]; ends with a barrier.
template <class C, int D>
__device__ void join_warps(State<C>& state, float* join, float (&maxima)[4][16], float (&sums)[4][16]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = warp / C::kDimWarps, half = warp % C::kDimWarps;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if ((lane & 3) != 0 || half != 0) continue;
    maxima[keys][h * 8 + lane / 4] = state.maximum[h];
    sums[keys][h * 8 + lane / 4] = state.denominator[h];
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = h * 8 + lane / 4;
    const float top = fmaxf(fmaxf(maxima[0][row], maxima[1][row]), fmaxf(maxima[2][row], maxima[3][row]));
    const float factor = state.maximum[h] == -INFINITY ? 0.0f : ptx::exp2(state.maximum[h] - top);
#pragma unroll
    for (auto& o : state.out) o[2 * h] *= factor, o[2 * h + 1] *= factor;
  }
  for (int turn = 0; turn < 4; ++turn) {  // in turn, so that the sum's order is always the same
    if (keys == turn) {
#pragma unroll
      for (int n = 0; n < C::kOutDims / 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int d = half * C::kOutDims + out_dim<C>(n, lane);
          auto* at = reinterpret_cast<float2*>(join + (h * 8 + lane / 4) * D + d);
          const float2 sum = turn == 0 ? make_float2(0, 0) : *at;
          *at = make_float2(sum.x + state.out[n][2 * h], sum.y + state.out[n][2 * h + 1]);
        }
      }
    }
    __syncthreads();
  }
}

__device__ __forceinline__ void store_4(__nv_bfloat16* out, float4 v, float factor) {
  *reinterpret_cast<uint2*>(out) = {ptx::pack_bf16(v.x * factor, v.y * factor),
                                    ptx::pack_bf16(v.z * factor, v.w * factor)};
}

// CTAs take the plan's chunks by ticket.
template <int D, bool FP8>
__global__ void __launch_bounds__(Config<D, true, FP8>::kThreads, Config<D, true, FP8>::kCtasPerSm)
decode_kernel(const __grid_constant__ DecodeParams p) {
  using C = Config<D, true, FP8>;
  extern __shared__ __align__(128) char shared[];
  __shared__ float maxima[4][16], sums[4][16];
  __shared__ int next;
  const int group = p.q_heads / p.kv_heads, num_chunks = p.plan->num_chunks;
  auto* ticket = reinterpret_cast<unsigned*>(const_cast<unsigned char*>(plan_at(p.plan, kTicketsAt))) + p.launch_index;
  for (int index = blockIdx.x; index < num_chunks; index = next) {
    const DecodeChunk& c = plan_chunks(p.plan)[index];
    const Work w{.slot = c.slot, .head = c.head, .q_len = 1, .kv_len = c.kv_len, .first_token = c.row, .first_row = 0,
                 .num_rows = group, .first_block = c.first_block, .num_blocks = c.num_blocks};
    State<C> state;
    attend<C, D>(p, w, shared, state);
    if (threadIdx.x == 0) next = static_cast<int>(gridDim.x + atomicAdd(ticket, 1u));  // all have read the last one
    float* join = reinterpret_cast<float*>(shared + C::kQueryBytes);
    join_warps<C, D>(state, join, maxima, sums);
    const int64_t partial = c.unit_first + c.chunk;
    for (int i = threadIdx.x; i < group * (D / 4); i += C::kThreads) {
      const int g = i / (D / 4), d = i % (D / 4) * 4;
      const float maximum = fmaxf(fmaxf(maxima[0][g], maxima[1][g]), fmaxf(maxima[2][g], maxima[3][g]));
      float denominator = 0;
      for (int k = 0; k < 4; ++k) {
        if (maxima[k][g] != -INFINITY) denominator += sums[k][g] * ptx::exp2(maxima[k][g] - maximum);
      }
      const float4 o = *reinterpret_cast<const float4*>(join + g * D + d);
      if (c.unit_chunks > 1) {
        *reinterpret_cast<float4*>(p.partial_out + (partial * 16 + g) * D + d) = o;
        if (d == 0) p.partial_ml[partial * 16 + g] = make_float2(maximum, denominator);
      } else if (d < p.head_dim) {
        store_4(p.out + row_offset(p, w, g) + d, o, norm_factor(denominator, maximum, p.sinks, c.head * group + g));
      }
    }
    __syncthreads();  // before the ring is filled again
  }
}

constexpr int kMergeThreads = 128;

// Tasks: 128 times four dims of a unit's outputs. Units of one chunk are done already.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ DecodeParams p, int dim) {
  const auto* row_first = reinterpret_cast<const int32_t*>(plan_at(p.plan, kRowFirstAt));
  const int group = p.q_heads / p.kv_heads, quads = group * (dim / 4);
  const int slices = (quads + kMergeThreads - 1) / kMergeThreads;
  const int tasks = p.plan->num_rows * p.kv_heads * slices;
  for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int unit = task / slices, row = unit / p.kv_heads, head = unit % p.kv_heads;
    const int n = (row_first[row + 1] - row_first[row]) / p.kv_heads;
    const int quad = task % slices * kMergeThreads + static_cast<int>(threadIdx.x);
    if (n <= 1 || quad >= quads) continue;
    const int g = quad / (dim / 4), d = quad % (dim / 4) * 4;
    if (d >= p.head_dim) continue;
    const int64_t first = int64_t{row_first[row] + head * n} * 16 + g;
    float maximum = -INFINITY, denominator = 0;
    for (int i = 0; i < n; ++i) maximum = fmaxf(maximum, p.partial_ml[first + int64_t{i} * 16].x);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int i = 0; i < n; ++i) {
      const int64_t at = first + int64_t{i} * 16;
      const float2 ml = p.partial_ml[at];
      const float4 o = *reinterpret_cast<const float4*>(p.partial_out + at * dim + d);
      const float weight = ml.x == -INFINITY ? 0.0f : ptx::exp2(ml.x - maximum);
      denominator += ml.y * weight;
      sum.x += o.x * weight, sum.y += o.y * weight, sum.z += o.z * weight, sum.w += o.w * weight;
    }
    __nv_bfloat16* out = p.out + (int64_t{row} * p.q_heads + head * group + g) * p.head_dim + d;
    store_4(out, sum, norm_factor(denominator, maximum, p.sinks, head * group + g));
  }
}

template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

template <int D, bool FP8>
int resident_ctas() {
  int device = 0, sms = 0, per_sm = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, decode_kernel<D, FP8>, Config<D, true, FP8>::kThreads,
                                                Config<D, true, FP8>::kSharedBytes);
  return sms * per_sm;
}

template <bool FP8>
cudaError_t prepare_kernels(int head_dim) {
  return by_head_dim(head_dim, [&]<int D>() {
    const cudaError_t error = allow_shared(extend_kernel<D, FP8>, Config<D, false, FP8>::kSharedBytes);
    return error != cudaSuccess ? error : allow_shared(decode_kernel<D, FP8>, Config<D, true, FP8>::kSharedBytes);
  });
}

template <bool FP8>
int decode_ctas_of(int head_dim) {
  return by_head_dim(head_dim, [&]<int D>() {
    static const int ctas = prepare_kernels<FP8>(head_dim) == cudaSuccess ? resident_ctas<D, FP8>() : 0;
    return ctas;
  });
}

template <bool FP8>
cudaError_t launch_decode(const DecodeParams& p, int ctas, cudaStream_t stream) {
  if (p.helped_ctas > 0) return cudaErrorInvalidValue;  // these CTAs start with the chunk of their index: none comes late
  by_head_dim(p.head_dim, [&]<int D>() {
    using C = Config<D, true, FP8>;
    decode_kernel<D, FP8><<<ctas, C::kThreads, C::kSharedBytes, stream>>>(p);
  });
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  merge_kernel<<<ctas, kMergeThreads, 0, stream>>>(p, padded_dim(p.head_dim));
  return cudaGetLastError();
}

template <bool FP8>
cudaError_t launch_extend(const ExtendParams& p, cudaStream_t stream) {
  if (p.num_tiles == 0) return cudaSuccess;
  if (p.split.parts > 1) return cudaErrorInvalidValue;
  by_head_dim(p.head_dim, [&]<int D>() {
    using C = Config<D, false, FP8>;
    extend_kernel<D, FP8><<<p.num_tiles * p.kv_heads, C::kThreads, C::kSharedBytes, stream>>>(p);
  });
  return cudaGetLastError();
}

}  // namespace
}  // namespace tailrace::cuda
