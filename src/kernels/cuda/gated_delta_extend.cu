// The chunked form. With G_i the sum of g up to token i of a chunk, A_ij = beta_i exp(G_i - G_j)
// k_i k_j for j < i, and T = (I + A)^-1, what the chunk's tokens write into the state that came
// before is V' = T beta v - T (beta exp(G) k) S = U - W S:
//   o = exp(G) q S + (exp(G_i - G_j) q_i k_j, j <= i) V',   S = exp(G_n) S + (exp(G_n - G) k)^T V'
// Four kernels: convolution and norms; U, W and the products of q and k, all chunks side by side;
// the walk over a row's chunks, a CTA for 32 columns of a v-head's state, the next tiles under way
// while it multiplies; norm and gate. All sums are of fp32, like those of the recurrent form: T
// amplifies what its inputs are rounded by. Bound: 2 * 64 * (3 * 64 + 6 * 128) FLOP a token and 32
// columns in fp32, on one SM a chunk after the other.
#include <algorithm>

#include "kernels/cuda/gated_delta.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/step_rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 8;  // that a warp convolves
constexpr int kConvWarps = 4;
constexpr int kSquare = kDeltaChunk + 4;  // stride of a [chunk][chunk] tile: rows on other banks

template <int D>
constexpr int kStride = D + 4;  // of a [chunk][D] tile

__device__ __forceinline__ float4 load_4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
// ---- Convolution, SiLU, norms of q and k: a warp takes eight tokens of a head
// -----------------------------------------

template <int D>
__global__ void __launch_bounds__(kConvWarps * 32)
    convolve_kernel(const __grid_constant__ DeltaParams p) {
  constexpr int kLane = D / 32;  // channels
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int first = p.rows.num_decode_rows, lane = threadIdx.x % 32, head = blockIdx.y;
  const int begin = first + (blockIdx.x * kConvWarps + threadIdx.x / 32) * kTokens;
  const int end = min(begin + kTokens, p.rows.num_tokens), channels = channels_of(p);
  const int channel = head * D + lane * kLane;
  if (begin >= end) return;
  float raw[kTokens + kDeltaInputs - 1][kLane];
  float4 weight[kLane];
#pragma unroll
  for (int c = 0; c < kLane; ++c) weight[c] = load_4(p.conv + int64_t{channel + c} * kDeltaInputs);
#pragma unroll
  for (int j = 0; j < kTokens + kDeltaInputs - 1; ++j) {
    const int token = begin + j - (kDeltaInputs - 1);
#pragma unroll
    for (int c = 0; c < kLane; ++c) {
      raw[j][c] =
          token >= first && token < end ? __ldcg(p.in + token * p.in_stride + channel + c) : 0.0f;
    }
  }
  int r = row_of(p.rows, begin);
  BatchRow row = p.rows.rows[r];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int token = begin + t;
    if (token >= end) break;
    if (token >= row.q_start + row.q_len && r + 1 < p.rows.num_rows) row = p.rows.rows[++r];
    float value[kLane] = {}, squares = 0;
#pragma unroll
    for (int c = 0; c < kLane; ++c) {
#pragma unroll
      for (int j = 0; j < kDeltaInputs; ++j) {
        const int back = kDeltaInputs - 1 - j;
        float x = raw[t + j][c];
        if (token - back < row.q_start) {  // of an earlier step, or before the first
          const int position = position_of(row, token) - back;
          x = position < 0 ? 0.0f
                           : __ldcg(delta_inputs(p, source_slot(p, row)) + input_at(p, position) +
                                    channel + c);
        }
        value[c] += component(weight[c], j) * x;
      }
      value[c] = silu(value[c]);
      squares += value[c] * value[c];
    }
    if (head < 2 * p.k_heads) {
      const float factor = rsqrtf(warp_sum(squares) + GatedDeltaBlock::kL2Eps) *
                           (head < p.k_heads ? rsqrtf(static_cast<float>(D)) : 1.0f);
#pragma unroll
      for (int c = 0; c < kLane; ++c) value[c] *= factor;
    }
#pragma unroll
    for (int c = 0; c < kLane; ++c)
      p.scratch.mixed[int64_t{token} * channels + channel + c] = value[c];
  }
}

// ---- Chunks
// ------------------------------------------------------------------------------------------------------------

// Up to 64 tokens of one row.
struct Chunk {
  int token = 0, count = 0;  // in the step; 0: none
};

// Row r's chunks take places from (q_start - first token) / 64 + r on: no two rows share one,
// whatever their lengths.
__device__ __forceinline__ int first_place(const StepRows& s, int r) {
  return (s.rows[r].q_start - s.num_decode_rows) / kDeltaChunk + r - s.num_decode_rows;
}
__device__ __forceinline__ Chunk chunk_at(const StepRows& s, int place) {
  int low = s.num_decode_rows, high = s.num_rows;  // first_place(low) <= place
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_place(s, middle) <= place ? low : high) = middle;
  }
  const BatchRow row = s.rows[low];
  const int done = (place - first_place(s, low)) * kDeltaChunk;
  return {row.q_start + done, max(0, min(kDeltaChunk, row.q_len - done))};
}

// Columns [0, D) of `count` rows into a tile; rows behind are zero.
template <int D>
__device__ __forceinline__ void load_tile(float* tile, const float* from, int64_t stride,
                                          int count) {
  constexpr int kPieces = D / 4;
  for (int i = threadIdx.x; i < kDeltaChunk * kPieces; i += kThreads) {
    const int r = i / kPieces, c = i % kPieces * 4;
    ptx::copy_16(tile + r * kStride<D> + c, from + min(r, count - 1) * stride + c, r < count);
  }
}

template <int D>
constexpr size_t kChunkBytes = sizeof(float) *
                               (2 * kDeltaChunk * kStride<D> + kDeltaChunk * kSquare);

template <int D>
__global__ void __launch_bounds__(kThreads) chunk_kernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(16) float chunk_tiles[];
  __shared__ float sums[kDeltaChunk], betas[kDeltaChunk];
  float *k = chunk_tiles, *q = k + kDeltaChunk * kStride<D>, *a = q + kDeltaChunk * kStride<D>;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const Chunk chunk = chunk_at(p.rows, blockIdx.x);
  if (chunk.count == 0) return;
  const int v_head = blockIdx.y, k_head = v_head / (p.v_heads / p.k_heads), thread = threadIdx.x,
            channels = channels_of(p);
  float* mixed = p.scratch.mixed + int64_t{chunk.token} * channels;
  load_tile<D>(q, mixed + k_head * D, channels, chunk.count);
  load_tile<D>(k, mixed + (p.k_heads + k_head) * D, channels, chunk.count);
  ptx::copy_commit();
  if (thread < kDeltaChunk) {
    const bool real = thread < chunk.count;
    float g = real ? delta_decay(p, projected_a(p, chunk.token + thread, v_head), v_head) : 0.0f;
    betas[thread] = real ? delta_beta(projected_b(p, chunk.token + thread, v_head)) : 0.0f;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const float before = __shfl_up_sync(~0u, g, o);
      if (thread % 32 >= o) g += before;
    }
    sums[thread] = g;
  }
  __syncthreads();
  if (thread >= 32 && thread < kDeltaChunk) sums[thread] += sums[31];
  ptx::copy_wait();
  __syncthreads();
  if (thread < chunk.count)
    p.scratch.decay[int64_t{chunk.token + thread} * p.v_heads + v_head] = sums[thread];

  const int i0 = thread / 16 * 4, j0 = thread % 16;  // rows i0 + 0..3, columns j0 + 16 * 0..3
  float kk[4][4] = {}, qk[4][4] = {};
  for (int d = 0; d < D; d += 4) {
    float4 right[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) right[j] = load_4(k + (j0 + 16 * j) * kStride<D> + d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 ki = load_4(k + (i0 + i) * kStride<D> + d),
                   qi = load_4(q + (i0 + i) * kStride<D> + d);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        kk[i][j] += ki.x * right[j].x + ki.y * right[j].y + ki.z * right[j].z + ki.w * right[j].w;
        qk[i][j] += qi.x * right[j].x + qi.y * right[j].y + qi.z * right[j].z + qi.w * right[j].w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = i0 + i, column = j0 + 16 * j;
      const float decay = __expf(sums[row] - sums[column]);
      a[row * kSquare + column] = column < row ? betas[row] * decay * kk[i][j] : 0.0f;
      if (row < chunk.count)
        p.scratch.p[(int64_t{chunk.token + row} * p.v_heads + v_head) * kDeltaChunk + column] =
            column <= row ? decay * qk[i][j] : 0.0f;
    }
  }
  __syncthreads();
  // (I + A) X = [beta v | beta exp(G) k], a column a thread.
  if (thread >= 2 * D) return;
  const bool values = thread < D;
  const int c = values ? thread : thread - D;
  float* column = values ? mixed + (2 * p.k_heads + v_head) * D + c
                         : p.scratch.w + (int64_t{chunk.token} * p.v_heads + v_head) * D + c;
  const int64_t stride = values ? channels : int64_t{p.v_heads} * D;
  float x[kDeltaChunk];
#pragma unroll
  for (int block = 0; block < kDeltaChunk; block += 8) {
    if (block >= chunk.count) return;
#pragma unroll
    for (int i = block; i < block + 8; ++i) {
      x[i] = !values           ? betas[i] * __expf(sums[i]) * k[i * kStride<D> + c]
             : i < chunk.count ? betas[i] * __ldcg(column + i * stride)
                               : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < block;
         j += 4) {  // eight sums side by side: one after the other they would wait for each other
#pragma unroll
      for (int i = block; i < block + 8; ++i) {
        const float4 factors = load_4(a + i * kSquare + j);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[i] -= component(factors, e) * x[j + e];
      }
    }
#pragma unroll
    for (int j = block; j < block + 8; ++j) {
#pragma unroll
      for (int i = j + 1; i < block + 8; ++i) x[i] -= a[i * kSquare + j] * x[j];
      if (j < chunk.count) column[j * stride] = x[j];
    }
  }
}

// ---- A row's chunks in turn
// ----------------------------------------------------------------------------------------------

constexpr int kLanes = kDeltaSlice / 4,
              kGroups = kThreads / kLanes;  // threads: four columns of every 32nd row
constexpr int kSliceStride = kDeltaSlice + 4;
static_assert(2 * kGroups == kDeltaChunk);

template <int D>
struct WalkTiles {
  float w[kDeltaChunk * kStride<D>], q[kDeltaChunk * kStride<D>], k[kDeltaChunk * kStride<D>],
      p[kDeltaChunk * kSquare];
  float state[D * kSliceStride], v[kDeltaChunk * kSliceStride],
      v_kept[kDeltaChunk * kSliceStride];  // V', and times exp(G_n - G)
};

// sum += a row's four values times four rows of a tile of slices.
__device__ __forceinline__ void add_product(float4& sum, const float4& row,
                                            const float4 (&tile)[4]) {
  add_scaled(sum, tile[0], row.x), add_scaled(sum, tile[1], row.y), add_scaled(sum, tile[2], row.z),
      add_scaled(sum, tile[3], row.w);
}

template <int D>
struct Walk {
  const DeltaParams& p;
  WalkTiles<D>& tiles;
  const BatchRow row;
  const int v_head, slice, k_head = v_head / (p.v_heads / p.k_heads);
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int64_t channels = channels_of(p);

  __device__ float* mixed(int token) const { return p.scratch.mixed + token * channels; }
  // The slice's columns of V of a token, which become U's, then o's.
  __device__ float* values(int token) const {
    return mixed(token) + (2 * p.k_heads + v_head) * D + slice * kDeltaSlice + lane * 4;
  }
  __device__ void ask_w_q(int token, int count) const {
    load_tile<D>(tiles.w, p.scratch.w + (int64_t{token} * p.v_heads + v_head) * D,
                 int64_t{p.v_heads} * D, count);
    load_tile<D>(tiles.q, mixed(token) + k_head * D, channels, count);
    ptx::copy_commit();
  }
  __device__ void ask_k_p(int token, int count) const {
    load_tile<D>(tiles.k, mixed(token) + (p.k_heads + k_head) * D, channels, count);
    for (int i = threadIdx.x; i < kDeltaChunk * kDeltaChunk / 4; i += kThreads) {
      const int r = i / (kDeltaChunk / 4), c = i % (kDeltaChunk / 4) * 4;
      const float* from =
          p.scratch.p + (int64_t{token + min(r, count - 1)} * p.v_heads + v_head) * kDeltaChunk + c;
      ptx::copy_16(tiles.p + r * kSquare + c, from, r < count);
    }
    ptx::copy_commit();
  }
  __device__ float sum_of_decays(int token) const {
    return __ldcg(p.scratch.decay + int64_t{token} * p.v_heads + v_head);
  }
};

template <int D>
__global__ void __launch_bounds__(kThreads) walk_kernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(16) float walk_tiles[];
  auto& tiles = *reinterpret_cast<WalkTiles<D>*>(walk_tiles);
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const Walk<D> walk{p, tiles, p.rows.rows[p.rows.num_decode_rows + blockIdx.z],
                     static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x)};
  const BatchRow& row = walk.row;
  if (row.kv_len == 0) return;
  const int lane = walk.lane, group = walk.group, end = row.q_start + row.q_len;
  const bool holds = group * 4 < D;  // rows group * 4 + 0..3 of the state
  const int64_t at =
      (int64_t{walk.v_head} * D + group * 4) * D + walk.slice * kDeltaSlice + lane * 4;
  float4 state[4] = {};
  if (holds && row.state_from != kZeroState) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      state[i] =
          __ldcg(reinterpret_cast<const float4*>(delta_state(p, source_slot(p, row)) + at + i * D));
  }
  const auto publish = [&] {
    if (!holds) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<float4*>(tiles.state + (group * 4 + i) * kSliceStride + lane * 4) =
          state[i];
  };
  publish();
  walk.ask_w_q(row.q_start, min(kDeltaChunk, row.q_len));
  walk.ask_k_p(row.q_start, min(kDeltaChunk, row.q_len));
  for (int token = row.q_start; token < end; token += kDeltaChunk) {
    const int count = min(kDeltaChunk, end - token),
              next = min(kDeltaChunk, end - token - kDeltaChunk);
    float4 written[2], out[2] = {};  // V' and o of rows group and group + 32
    float decay[2];
    const float all = walk.sum_of_decays(token + count - 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = group + h * kGroups;
      written[h] = r < count ? __ldcg(reinterpret_cast<const float4*>(walk.values(token + r)))
                             : float4{0, 0, 0, 0};
      decay[h] = r < count ? walk.sum_of_decays(token + r) : all;
    }
    ptx::copy_wait_but<1>();
    __syncthreads();
    float4 taken[2] = {};
    for (int d = 0; d < D; d += 4) {
      float4 s[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = load_4(tiles.state + (d + i) * kSliceStride + lane * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        add_product(taken[h], load_4(tiles.w + (group + h * kGroups) * kStride<D> + d), s);
        add_product(out[h], load_4(tiles.q + (group + h * kGroups) * kStride<D> + d), s);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      add_scaled(written[h], taken[h], -1.0f);
      const int to = (group + h * kGroups) * kSliceStride + lane * 4;
      *reinterpret_cast<float4*>(tiles.v + to) = written[h];
      float4 kept = {0, 0, 0, 0};
      add_scaled(kept, written[h], __expf(all - decay[h]));
      *reinterpret_cast<float4*>(tiles.v_kept + to) = kept;
      const float grown = __expf(decay[h]);
      out[h].x *= grown, out[h].y *= grown, out[h].z *= grown, out[h].w *= grown;
    }
    __syncthreads();  // w and q are read
    if (next > 0) {
      walk.ask_w_q(token + kDeltaChunk, next);
      ptx::copy_wait_but<1>();
    } else {
      ptx::copy_wait();
    }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < kDeltaChunk; j += 4) {
      float4 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = load_4(tiles.v + (j + i) * kSliceStride + lane * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        add_product(out[h], load_4(tiles.p + (group + h * kGroups) * kSquare + j), v);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (group + h * kGroups < count)
        *reinterpret_cast<float4*>(walk.values(token + group + h * kGroups)) = out[h];
    }
    if (holds) {
      const float keep = __expf(all);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        state[i].x *= keep, state[i].y *= keep, state[i].z *= keep, state[i].w *= keep;
#pragma unroll 4
      for (int j = 0; j < kDeltaChunk; ++j) {
        const float4 k = load_4(tiles.k + j * kStride<D> + group * 4),
                     v = load_4(tiles.v_kept + j * kSliceStride + lane * 4);
        add_scaled(state[0], v, k.x), add_scaled(state[1], v, k.y), add_scaled(state[2], v, k.z),
            add_scaled(state[3], v, k.w);
      }
    }
    publish();
    __syncthreads();  // k, p and both v are read
    if (next > 0) walk.ask_k_p(token + kDeltaChunk, next);
  }
  const int64_t target = target_slot(p, row);
  if (holds) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<float4*>(delta_state(p, row.slot) + at + i * D) = state[i];
      if (target >= 0) *reinterpret_cast<float4*>(delta_state(p, target) + at + i * D) = state[i];
    }
  }
  const int begin = row.kv_len - row.q_len;
  const int cta = blockIdx.y * gridDim.x + blockIdx.x;
  for (int c = cta * kThreads + threadIdx.x; c < channels_of(p);
       c += gridDim.x * gridDim.y * kThreads) {
    keep_inputs(p, row, c, begin, row.kv_len, [&](int position) {
      return __ldcg(p.in + (row.q_start + position - begin) * p.in_stride + c);
    });
  }
}

// ---- Norm and gate: a warp takes a token's head
// ------------------------------------------------------------------------------

template <int D>
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ DeltaParams p) {
  constexpr int kLane = D / 32;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t i = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int token = p.rows.num_decode_rows + static_cast<int>(i / p.v_heads),
            v_head = static_cast<int>(i % p.v_heads);
  if (token >= p.rows.num_tokens) return;
  const float* from =
      p.scratch.mixed + int64_t{token} * channels_of(p) + (2 * p.k_heads + v_head) * D;
  const float* z = p.in + token * p.in_stride + channels_of(p) + v_head * D;
  float v[kLane], squares = 0;
#pragma unroll
  for (int c = 0; c < kLane; ++c) v[c] = __ldcg(from + c * 32 + lane), squares += v[c] * v[c];
  const float factor = rsqrtf(warp_sum(squares) / D + p.eps);
#pragma unroll
  for (int c = 0; c < kLane; ++c) {
    const int column = c * 32 + lane;
    p.out[(int64_t{token} * p.v_heads + v_head) * D + column] =
        __float2bfloat16(v[c] * factor * p.norm[column] * silu(__ldcg(z + column)));
  }
}

template <int D>
cudaError_t launch(const DeltaParams& p, cudaStream_t stream) {
  const int tokens = p.rows.num_tokens - p.rows.num_decode_rows,
            rows = p.rows.num_rows - p.rows.num_decode_rows;
  const auto count = [](int64_t n, int by) { return static_cast<unsigned>((n + by - 1) / by); };
  const auto v_heads = static_cast<unsigned>(p.v_heads);
  cudaError_t error = launch_overlapped(
      convolve_kernel<D>, dim3(count(tokens, kConvWarps * kTokens), 2 * p.k_heads + v_heads),
      kConvWarps * 32, 0, stream, p);
  if (error != cudaSuccess) return error;
  error = launch_overlapped(chunk_kernel<D>,
                            dim3(static_cast<unsigned>(tokens / kDeltaChunk + rows), v_heads),
                            kThreads, kChunkBytes<D>, stream, p);
  if (error != cudaSuccess) return error;
  error =
      launch_overlapped(walk_kernel<D>, dim3(D / kDeltaSlice, v_heads, static_cast<unsigned>(rows)),
                        kThreads, sizeof(WalkTiles<D>), stream, p);
  if (error != cudaSuccess) return error;
  return launch_overlapped(gate_kernel<D>, count(int64_t{tokens} * p.v_heads, kThreads / 32),
                           kThreads, 0, stream, p);
}

template <int D>
cudaError_t prepare() {
  cudaError_t error =
      cudaFuncSetAttribute(chunk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kChunkBytes<D>));
  if (error != cudaSuccess) return error;
  cudaFuncAttributes loaded;  // a kernel that nothing asked for yet would be loaded by the step
                              // that meets it first
  for (const auto kernel : {convolve_kernel<D>, gate_kernel<D>}) {
    if ((error = cudaFuncGetAttributes(&loaded, kernel)) != cudaSuccess) return error;
  }
  return cudaFuncSetAttribute(walk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(WalkTiles<D>)));
}

}  // namespace

cudaError_t prepare_delta() {
  for (const int dim : {32, 64, 128}) {
    const cudaError_t error = by_delta_dim(dim, [&]<int D>() { return prepare<D>(); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t run_delta_extend(const DeltaParams& p, cudaStream_t stream) {
  return by_delta_dim(p.dim, [&]<int D>() { return launch<D>(p, stream); });
}

}  // namespace tailrace::cuda
