// What a CTA of extend attention owns: its tile of packed query rows, their softmax, the joining of a tile's parts, the outputs.
#pragma once

#include "kernels/cuda/attention_extend.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda::extend {

// FP8: of a pool of e4m3. The functions below need what both have in common.
template <int D, bool FP8 = false>
struct Config {
  static constexpr bool kSplitDims = D > 256;              // the groups share rows and split the output dims
  static constexpr int kRows = kSplitDims ? 64 : 128;
  static constexpr int kOutDims = kSplitDims ? D / 2 : D;  // of a group
  static constexpr int kPartDims = D > 256 ? 256 : D;      // a ring stage: this many dims of a tile's K or V
  static constexpr int kParts = D / kPartDims;
  static constexpr int kStageBytes = kBlockTokens * kPartDims * 2;
  static constexpr int kMinCtas = D == 64 && !FP8 ? 2 : 1;  // of an SM
  static constexpr int kStages = FP8 ? (D > 128 ? 4 : 8) : D == 64 ? 12 : D == 128 ? 8 : 5;
  static constexpr int kCodeBytes = kBlockTokens * kPartDims;  // a part in e4m3, before it becomes a stage
  static constexpr int kCodeStages = !FP8 ? 0 : D > 128 ? 2 : 4;
  static constexpr bool kQueryInRegisters = D <= 128;
  static constexpr int kQueryBytes = kRows * D * 2;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kQueryBytes + kCodeStages * (kCodeBytes + 8) + 2 * kStages * 8 + 16;
  static constexpr int kConsumers = 256;
  static constexpr int kPartialBytes = (kOutDims / 8 + 1) * 128 * sizeof(float4);  // of a group: o, then (m, l) of two rows
  // With two CTAs an SM their four warp groups take all registers; a thread of each then loads, besides its own work.
  static constexpr bool kProducer = kMinCtas == 1;         // a warp group that gives its registers to the others
  static constexpr int kThreads = kConsumers + (kProducer ? 128 : 0);
};

// Where a CTA works.
struct Tile {
  BatchRow row;
  int head;          // KV head
  int first_packed;  // packed row of its first
  int part, parts;   // of the tile's keys
  int low, high;     // its KV tiles [low, high), perhaps none
};

template <int D, bool SPLIT>
__device__ Tile tile_of(const ExtendParams& p, int index) {
  using C = Config<D>;
  Tile t;
  t.part = 0, t.parts = 1;
  if (SPLIT && index >= p.split.from) {
    t.parts = p.split.parts;
    t.part = (index - p.split.from) % t.parts;
    index = p.split.from + (index - p.split.from) / t.parts;
  }
  t.head = index % p.kv_heads;
  int tile = index / p.kv_heads, r = 0;
  while (p.tile_start[r + 1] <= tile) ++r;
  t.row = p.rows[r];
  const int group = p.q_heads / p.kv_heads;
  tile = p.tile_start[r + 1] - 1 - tile;  // the last tokens see the most keys: first
  t.first_packed = tile * C::kRows;
  const int base = t.row.kv_len - t.row.q_len;
  const int first_token = t.first_packed / group;
  const int last_token = min((t.first_packed + C::kRows - 1) / group, t.row.q_len - 1);
  t.low = p.window > 0 ? max(0, base + first_token - p.window + 1) / kBlockTokens : 0;
  t.high = (base + last_token) / kBlockTokens + 1;
  if constexpr (SPLIT) {
    const int low = t.low, tiles = t.high - low;
    t.low = low + tiles * t.part / t.parts;
    t.high = low + tiles * (t.part + 1) / t.parts;
  }
  return t;
}

// This thread's two rows: lane / 4 and lane / 4 + 8 of its warp's 16.
struct Rows {
  int position[2];  // of the row's token in the sequence; -1: padding
  int head[2];
};

template <int D>
__device__ Rows rows_of(const ExtendParams& p, const Tile& t, int group_index) {
  Rows rows;
  const int group = p.q_heads / p.kv_heads;
  const int within = (threadIdx.x % 128) / 32 * 16 + (threadIdx.x % 32) / 4 + (Config<D>::kSplitDims ? 0 : group_index * 64);
  for (int h = 0; h < 2; ++h) {
    const int packed = t.first_packed + within + 8 * h, token = packed / group;
    rows.head[h] = t.head * group + packed % group;
    rows.position[h] = token < t.row.q_len ? t.row.kv_len - t.row.q_len + token : -1;
  }
  return rows;
}

// The group's 64 rows of Q to shared memory, swizzled; rows past the chunk are zero.
template <int D>
__device__ void load_query(const ExtendParams& p, const Tile& t, char* query, int first_row, int thread, int threads) {
  const int group = p.q_heads / p.kv_heads;
  for (int i = thread; i < 64 * D / 8; i += threads) {
    const int row = i / (D / 8), d = i % (D / 8) * 8;
    const int packed = t.first_packed + first_row + row, token = packed / group;
    const bool real = token < t.row.q_len && d < p.head_dim;
    const __nv_bfloat16* src =
        p.q + (int64_t{t.row.q_start + (real ? token : 0)} * p.q_heads + t.head * group + packed % group) * p.head_dim;
    ptx::copy_16(query + swizzled(row, d) * 2, real ? src + d : src, real);
  }
  ptx::copy_commit();
  ptx::copy_wait();
  ptx::async_fence();  // wgmma reads what ordinary stores wrote
}

struct Softmax {
  static constexpr float kSlack = 8;  // log2: weights stay below 256, and bf16 rounds them all alike
  float maximum[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};

  // Scores in, probabilities out. True: the output so far is to be scaled by `factor`. The maximum is one that some tile had: it
  // moves only when a score of the warp's rows passes it by kSlack, so that most tiles need no shuffles and no scaling.
  __device__ __forceinline__ bool apply(float (&s)[32], const ExtendParams& p, const Rows& rows, int key_at, bool edge,
                                        float (&factor)[2]) {
    const float scale = p.softcap > 0 ? p.scale : p.scale * ptx::kLog2e;
    if (p.softcap > 0) {
#pragma unroll
      for (float& v : s) v = p.softcap * tanhf(v * scale / p.softcap) * ptx::kLog2e;
    }
    const float multiply = p.softcap > 0 ? 1.0f : scale;
    if (edge) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int last = rows.position[h] - key_at - (threadIdx.x & 3) * 2;  // a row sees this thread's columns (first, last]
        const int first = p.window > 0 ? last - p.window : -1 - kBlockTokens;
#pragma unroll
        for (int i = 2 * h; i < 32; i += 4) {
          const int column = i / 4 * 8;
          if (column > last || column <= first) s[i] = -INFINITY;
          if (column + 1 > last || column + 1 <= first) s[i + 1] = -INFINITY;
        }
      }
    }
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; ++i) top[(i >> 1) & 1] = fmaxf(top[(i >> 1) & 1], s[i]);
    const bool rescale = __any_sync(~0u, top[0] * multiply > maximum[0] + kSlack || top[1] * multiply > maximum[1] + kSlack);
    if (rescale) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float now = fmaxf(maximum[h], ptx::quad_max(top[h]) * multiply);
        // Two partials of -inf have weight 0, never exp(-inf - -inf).
        factor[h] = maximum[h] == -INFINITY ? 0.0f : ptx::exp2(maximum[h] - now);
        maximum[h] = now;
        denominator[h] *= factor[h];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = maximum[h] == -INFINITY ? 0.0f : maximum[h];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        s[i + 2 * h] = ptx::exp2(fmaf(s[i + 2 * h], multiply, -base));
        s[i + 2 * h + 1] = ptx::exp2(fmaf(s[i + 2 * h + 1], multiply, -base));
        sum += s[i + 2 * h] + s[i + 2 * h + 1];
      }
      denominator[h] += sum;  // of this thread's columns; the quad is summed at the end
    }
    return rescale;
  }
};

__device__ __forceinline__ void pack(uint32_t (&p)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

// Joins a tile's parts. False: this group has left its partial for the group that comes last, which gets true and the sum, formed
// in the order of the parts. That one waits only for groups that are writing already, so nothing need be resident.
template <int D>
__device__ bool join_parts(const ExtendParams& p, const Tile& t, int group_index, uint64_t* claims, Softmax& softmax,
                           float (&o)[Config<D>::kOutDims / 2]) {
  using C = Config<D>;
  constexpr int kQuads = C::kOutDims / 8, kBatch = 4;
  const int thread = threadIdx.x % 128;
  const int64_t unit = (int64_t{blockIdx.x} - p.split.from) / t.parts * 2 + group_index;
  unsigned long long *claimed = p.arrivals + 2 * unit, *written = claimed + 1;
  const auto partial = [&](int part) {
    return reinterpret_cast<float4*>(p.partial + (unit * t.parts + part) * C::kPartialBytes) + thread;
  };
  if (thread == 0) claims[group_index] = atomicAdd(claimed, 1ull);
  ptx::named_barrier(3 + group_index, 128);
  if (claims[group_index] + 1 < t.parts) {
    float4* own = partial(t.part);
#pragma unroll
    for (int n = 0; n < kQuads; ++n) own[n * 128] = make_float4(o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
    own[kQuads * 128] = make_float4(softmax.maximum[0], softmax.denominator[0], softmax.maximum[1], softmax.denominator[1]);
    __threadfence();
    ptx::named_barrier(3 + group_index, 128);
    if (thread == 0) atomicAdd(written, 1ull);
    return false;
  }
  if (thread == 0) {
    while (ptx::load_acquire(written) + 1 < t.parts) {
    }
    *claimed = 0, *written = 0;  // for the next launch
  }
  ptx::named_barrier(3 + group_index, 128);
  const float4 mine = make_float4(softmax.maximum[0], softmax.denominator[0], softmax.maximum[1], softmax.denominator[1]);
  const auto state = [&](int part) { return part == t.part ? mine : __ldcg(partial(part) + kQuads * 128); };
  for (int part = 0; part < t.parts; ++part) {
    const float4 ml = state(part);
    softmax.maximum[0] = fmaxf(softmax.maximum[0], ml.x), softmax.maximum[1] = fmaxf(softmax.maximum[1], ml.z);
  }
  const auto weight = [](float m, float maximum) { return m == -INFINITY ? 0.0f : ptx::exp2(m - maximum); };
  softmax.denominator[0] = softmax.denominator[1] = 0;
#pragma unroll
  for (int first = 0; first < kQuads; first += kBatch) {
    float4 sum[kBatch] = {};
    for (int part = 0; part < t.parts; ++part) {
      const float4 ml = state(part);
      const float w0 = weight(ml.x, softmax.maximum[0]), w1 = weight(ml.z, softmax.maximum[1]);
      if (first == 0) softmax.denominator[0] += w0 * ml.y, softmax.denominator[1] += w1 * ml.w;
      float4 v[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int i = 4 * (first + n);
        v[n] = part == t.part ? make_float4(o[i], o[i + 1], o[i + 2], o[i + 3]) : __ldcg(partial(part) + (first + n) * 128);
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        sum[n].x += w0 * v[n].x, sum[n].y += w0 * v[n].y, sum[n].z += w1 * v[n].z, sum[n].w += w1 * v[n].w;
      }
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int i = 4 * (first + n);
      o[i] = sum[n].x, o[i + 1] = sum[n].y, o[i + 2] = sum[n].z, o[i + 3] = sum[n].w;
    }
  }
  return true;
}

// The normalised output of this thread's two rows, in place.
template <int DIMS>
__device__ __forceinline__ void normalise(const ExtendParams& p, const Rows& rows, const Softmax& softmax, float (&o)[DIMS / 2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float denominator = softmax.denominator[h], factor = 1;
    if (p.sinks) {  // once, unscaled, in log2 units
      const float sink = p.sinks[rows.head[h]] * ptx::kLog2e, top = fmaxf(softmax.maximum[h], sink);
      factor = ptx::exp2(softmax.maximum[h] - top);
      denominator = denominator * factor + ptx::exp2(sink - top);
    }
    const float inverse = factor / denominator;
#pragma unroll
    for (int i = 2 * h; i < DIMS / 2; i += 4) o[i] *= inverse, o[i + 1] *= inverse;
  }
}

// Output rows leave through shared memory that only this warp uses (16 rows from `row0` of `staging`), so that each is one run
// of whole sectors; staging holds 64 rows, swizzled as a query tile.
template <int DIMS>
__device__ void write_rows(const ExtendParams& p, const Tile& t, char* staging, int row0, int first_packed, int dim0,
                           const float (&o)[DIMS / 2]) {
  const int lane = threadIdx.x % 32, group = p.q_heads / p.kv_heads;
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int n = 0; n < DIMS / 8; ++n) {
      *reinterpret_cast<uint32_t*>(staging + swizzled(row0 + lane / 4 + 8 * h, dim0 + n * 8 + (lane & 3) * 2) * 2) =
          ptx::pack_bf16(o[4 * n + 2 * h], o[4 * n + 2 * h + 1]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * DIMS / 8; i += 32) {
    const int row = row0 + i / (DIMS / 8), d = dim0 + i % (DIMS / 8) * 8;
    const int packed = first_packed + row, token = packed / group;
    if (token >= t.row.q_len || d >= p.head_dim) continue;
    const int64_t at = int64_t{t.row.q_start + token} * p.q_heads + t.head * group + packed % group;
    *reinterpret_cast<uint4*>(p.out + at * p.head_dim + d) =
        *reinterpret_cast<const uint4*>(staging + swizzled(row, d) * 2);
  }
}

}  // namespace tailrace::cuda::extend
