// Extend attention on Hopper: o = softmax(scale q K^T + causal mask) V over KV tiles of 64 tokens.
//
// Mapping. A CTA owns a tile of 128 packed rows (token, head of the group) of one KV head: row i is token i / group, head
// i % group. One producer thread issues bulk copies of K and V tiles, straight from the pool's blocks, which hold the 128-byte
// swizzle already; two warp groups of 64 rows each run wgmma: S = Q K^T (64 x 64 x D), then O += P V with P from registers. The
// next tile's S is issued before this tile's PV, so that softmax runs under tensor work. At head_dim 512 a CTA owns 64 rows, and
// the two groups hold half of the output dims each (both compute S).
// Order. Tiles with the most keys start first, so that short ones fill the end of the grid.
// Bound: 4 * rows * keys * D FLOP (5 of 4 at 512) over the bf16 rate; S and PV of width 64 keep shared memory at half its rate.
#include <algorithm>

#include "kernels/cuda/attention_extend.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/wgmma.h"

namespace tailrace::cuda {
namespace {

template <int D>
struct Config {
  static constexpr bool kSplitDims = D > 256;              // the groups share rows and split the output dims
  static constexpr int kRows = kSplitDims ? 64 : 128;
  static constexpr int kOutDims = kSplitDims ? D / 2 : D;  // of a group
  static constexpr int kPartDims = D > 256 ? 256 : D;      // a ring stage: this many dims of a tile's K or V
  static constexpr int kParts = D / kPartDims;
  static constexpr int kStageBytes = kBlockTokens * kPartDims * 2;
  static constexpr int kStages = D == 64 ? 12 : D == 128 ? 8 : 5;
  static constexpr bool kQueryInRegisters = D <= 128;
  static constexpr int kQueryBytes = kRows * D * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes + kQueryBytes + 2 * kStages * 8 + 1024;
  static constexpr int kThreads = 384;
};

// Where a CTA works.
struct Tile {
  BatchRow row;
  int head;          // KV head
  int first_packed;  // packed row of its first
  int low, high;     // KV tiles [low, high)
};

template <int D>
__device__ Tile tile_of(const ExtendParams& p, int index) {
  using C = Config<D>;
  Tile t;
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
  return t;
}

template <int D>
__device__ void produce(const ExtendParams& p, const Tile& t, char* stages, uint64_t* full, uint64_t* empty) {
  using C = Config<D>;
  const int32_t* table = p.block_table + t.row.slot * p.table_stride;
  int stage = 0;
  uint32_t phase = 1;  // the ring starts empty
  int32_t ahead = table[t.high - 1];
  for (int tile = t.high - 1; tile >= t.low; --tile) {
    const char* src = reinterpret_cast<const char*>(p.pool + (int64_t{ahead} * p.kv_heads + t.head) * kv_tile_values(D));
    if (tile > t.low) ahead = table[tile - 1];
#pragma unroll 1
    for (int part = 0; part < 2 * C::kParts; ++part) {
      ptx::mbarrier_wait(empty + stage, phase);
      ptx::mbarrier_expect(full + stage, C::kStageBytes);
      ptx::bulk_copy(stages + stage * C::kStageBytes, src + part * C::kStageBytes, C::kStageBytes, full + stage);
      if (++stage == C::kStages) stage = 0, phase ^= 1;
    }
  }
}

// A warp group's side of the ring.
template <int D>
struct Consumer {
  using C = Config<D>;
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

// This thread's two rows: lane / 4 and lane / 4 + 8 of its warp's 16.
struct Rows {
  int position[2];  // of the row's token in the sequence; -1: padding
  int token[2], head[2];
};

template <int D>
__device__ Rows rows_of(const ExtendParams& p, const Tile& t, int group_index) {
  Rows rows;
  const int group = p.q_heads / p.kv_heads;
  const int within = (threadIdx.x % 128) / 32 * 16 + (threadIdx.x % 32) / 4 + (Config<D>::kSplitDims ? 0 : group_index * 64);
  for (int h = 0; h < 2; ++h) {
    const int packed = t.first_packed + within + 8 * h;
    rows.token[h] = packed / group;
    rows.head[h] = t.head * group + packed % group;
    rows.position[h] = rows.token[h] < t.row.q_len ? t.row.kv_len - t.row.q_len + rows.token[h] : -1;
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

// Issues S = Q K^T of one tile; the caller commits.
template <int D>
__device__ __forceinline__ void issue_scores(float (&s)[32], const uint32_t (*q)[4], uint32_t q_address, Consumer<D>& ring) {
  using C = Config<D>;
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
template <int D>
__device__ __forceinline__ void issue_output(float (&o)[Config<D>::kOutDims / 2], const uint32_t (&p)[4][4], Consumer<D>& ring,
                                             int group_index) {
  using C = Config<D>;
  uint32_t v = ring.wait();
  if constexpr (C::kSplitDims) {
    const uint32_t upper = ring.wait();
    if (group_index == 1) v = upper;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::wgmma_rs<1>(o, p[k], ptx::descriptor(v + k * 2048), 1);
}

struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};

  // Scores in, probabilities out; factor: what the output so far is scaled by.
  __device__ __forceinline__ void apply(float (&s)[32], const ExtendParams& p, const Rows& rows, int key_at, bool edge,
                                        float (&factor)[2]) {
    const float scale = p.softcap > 0 ? p.scale : p.scale * ptx::kLog2e;
    if (p.softcap > 0) {
#pragma unroll
      for (float& v : s) v = p.softcap * tanhf(v * scale / p.softcap) * ptx::kLog2e;
    }
    const float multiply = p.softcap > 0 ? 1.0f : scale;
    if (edge) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = key_at + i / 4 * 8 + (threadIdx.x & 3) * 2 + (i & 1), position = rows.position[(i >> 1) & 1];
        if (key > position || (p.window > 0 && key <= position - p.window)) s[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < 32; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
      const float now = fmaxf(maximum[h], ptx::quad_max(top) * multiply);
      // Two partials of -inf have weight 0, never exp(-inf - -inf).
      factor[h] = maximum[h] == -INFINITY ? 0.0f : ptx::exp2(maximum[h] - now);
      maximum[h] = now;
      const float base = now == -INFINITY ? 0.0f : now;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        s[i + 2 * h] = ptx::exp2(fmaf(s[i + 2 * h], multiply, -base));
        s[i + 2 * h + 1] = ptx::exp2(fmaf(s[i + 2 * h + 1], multiply, -base));
        sum += s[i + 2 * h] + s[i + 2 * h + 1];
      }
      denominator[h] = denominator[h] * factor[h] + sum;  // of this thread's columns; the quad is summed at the end
    }
  }
};

__device__ __forceinline__ void pack(uint32_t (&p)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

template <int D>
__device__ void write_rows(const ExtendParams& p, const Tile& t, const Rows& rows, Softmax& softmax,
                           const float (&o)[Config<D>::kOutDims / 2], int dim0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float denominator = ptx::quad_sum(softmax.denominator[h]);
    if (rows.position[h] < 0) continue;
    float factor = 1;
    if (p.sinks) {  // once, unscaled, in log2 units
      const float sink = p.sinks[rows.head[h]] * ptx::kLog2e, top = fmaxf(softmax.maximum[h], sink);
      factor = ptx::exp2(softmax.maximum[h] - top);
      denominator = denominator * factor + ptx::exp2(sink - top);
    }
    const float inverse = factor / denominator;
    __nv_bfloat16* out = p.out + (int64_t{t.row.q_start + rows.token[h]} * p.q_heads + rows.head[h]) * p.head_dim + dim0;
#pragma unroll
    for (int n = 0; n < Config<D>::kOutDims / 8; ++n) {
      const int d = n * 8 + (threadIdx.x & 3) * 2;
      if (dim0 + d < p.head_dim) {
        *reinterpret_cast<uint32_t*>(out + d) = ptx::pack_bf16(o[4 * n + 2 * h] * inverse, o[4 * n + 2 * h + 1] * inverse);
      }
    }
  }
}

template <int D>
__device__ void consume(const ExtendParams& p, const Tile& t, Consumer<D> ring, char* query, int group_index) {
  using C = Config<D>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  char* own_query = query + (C::kSplitDims ? 0 : group_index * 64 * D * 2);
  if (C::kSplitDims) {
    load_query<D>(p, t, own_query, 0, threadIdx.x % 256, 256);
    ptx::named_barrier(1, 256);
  } else {
    load_query<D>(p, t, own_query, group_index * 64, threadIdx.x % 128, 128);
    ptx::named_barrier(1 + group_index, 128);
  }
  const uint32_t q_address = ptx::smem_address(own_query);
  uint32_t q[C::kQueryInRegisters ? D / 16 : 1][4];
  if constexpr (C::kQueryInRegisters) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      ptx::ldmatrix_x4(q[d / 16], q_address + swizzled(warp * 16 + (lane & 15), d + (lane >> 4) * 8) * 2);
    }
  }
  const Rows rows = rows_of<D>(p, t, group_index);
  // A tile is an edge for this CTA when some row does not see all of it.
  const int group = p.q_heads / p.kv_heads, base = t.row.kv_len - t.row.q_len;
  const int first_position = base + t.first_packed / group;
  const int last_position = base + min((t.first_packed + C::kRows - 1) / group, t.row.q_len - 1);
  auto is_edge = [&](int tile) {
    return (tile + 1) * kBlockTokens - 1 > first_position ||
           (p.window > 0 && tile * kBlockTokens <= last_position - p.window);
  };

  float o[C::kOutDims / 2];
#pragma unroll
  for (float& v : o) v = 0;
  Softmax softmax;
  float factor[2];
  uint32_t probability[4][4];
  {
    float s[32];
    ptx::wgmma_fence();
    issue_scores<D>(s, q, q_address, ring);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (int part = 1; part <= C::kParts; ++part) ring.release(part);
    softmax.apply(s, p, rows, (t.high - 1) * kBlockTokens, is_edge(t.high - 1), factor);
    pack(probability, s);
  }
  for (int tile = t.high - 2; tile >= t.low; --tile) {
    // In the ring: V of the tile before, then K of this one.
    float s[32];
    Consumer<D> next = ring;
    for (int part = 0; part < C::kParts; ++part) {  // this tile's K lies behind that V
      if (++next.stage == C::kStages) next.stage = 0, next.phase ^= 1;
    }
    ptx::wgmma_fence();
    issue_scores<D>(s, q, q_address, next);
    ptx::wgmma_commit();
    issue_output<D>(o, probability, ring, group_index);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    for (int part = 1; part <= C::kParts; ++part) next.release(part);
    softmax.apply(s, p, rows, tile * kBlockTokens, is_edge(tile), factor);
    ptx::wgmma_wait<0>();
    for (int part = 1; part <= C::kParts; ++part) ring.release(part);
#pragma unroll
    for (int n = 0; n < C::kOutDims / 8; ++n) {
      o[4 * n] *= factor[0], o[4 * n + 1] *= factor[0];
      o[4 * n + 2] *= factor[1], o[4 * n + 3] *= factor[1];
    }
    pack(probability, s);
    ring = next;
  }
  ptx::wgmma_fence();
  issue_output<D>(o, probability, ring, group_index);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  write_rows<D>(p, t, rows, softmax, o, C::kSplitDims ? group_index * C::kOutDims : 0);
}

template <int D>
__global__ void __launch_bounds__(Config<D>::kThreads, 1) extend_kernel(const __grid_constant__ ExtendParams p) {
  using C = Config<D>;
  extern __shared__ char memory[];
  char* aligned = memory + (1024 - (ptx::smem_address(memory) & 1023)) % 1024;
  char* query = aligned + C::kStages * C::kStageBytes;
  auto* full = reinterpret_cast<uint64_t*>(query + C::kQueryBytes);
  uint64_t* empty = full + C::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(full + i, 1);
      ptx::mbarrier_init(empty + i, 2);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  const Tile t = tile_of<D>(p, blockIdx.x);
  if (threadIdx.x < 128) {
    ptx::registers_down<24>();
    if (threadIdx.x == 0) produce<D>(p, t, aligned, full, empty);
  } else {
    ptx::registers_up<240>();
    consume<D>(p, t, Consumer<D>{aligned, full, empty}, query, threadIdx.x / 128 - 1);
  }
}

template <int D>
cudaError_t launch(const ExtendParams& p, cudaStream_t stream) {
  static const cudaError_t prepared =
      cudaFuncSetAttribute(extend_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, Config<D>::kSharedBytes);
  if (prepared != cudaSuccess) return prepared;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(p.num_tiles * p.kv_heads);
  config.blockDim = dim3(Config<D>::kThreads);
  config.dynamicSmemBytes = Config<D>::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, extend_kernel<D>, p);
}

}  // namespace

int extend_tile_rows(int head_dim) { return padded_dim(head_dim) > 256 ? 64 : 128; }

cudaError_t run_extend_hopper(const ExtendParams& p, cudaStream_t stream) {
  if (p.num_tiles == 0) return cudaSuccess;
  switch (padded_dim(p.head_dim)) {
    case 64: return launch<64>(p, stream);
    case 128: return launch<128>(p, stream);
    case 256: return launch<256>(p, stream);
    case 512: return launch<512>(p, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tailrace::cuda
