#include "kernels/cuda/token_ops.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_forms.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/step_rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, int threads, cudaStream_t stream, Args... args) {
  return launch_overlapped(kernel, grid, threads, 0, stream, args...);
}

__device__ __forceinline__ void enter() {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
}

__device__ __forceinline__ float block_sum(float v) {
  __shared__ float sums[kWarps];
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  __syncthreads();
  return total;
}

// ---- Begin and end -----------------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ void copy_all(T* to, const T* from, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

__device__ void apply(const BeginParams& p, const std::byte* slab, const SlabHeader& header) {
  copy_all(p.targets.rows, reinterpret_cast<const BatchRow*>(slab + header.rows_at), header.num_rows);
  const auto* starts = reinterpret_cast<const SlabStart*>(slab + header.starts_at);
  for (int i = 0; i < header.num_starts; ++i) {
    const SlabStart& start = starts[i];
    const int64_t slot = start.slot;
    const RowStateView& state = p.targets.state;
    if (threadIdx.x == 0) state.sampling[slot] = start.sampling, state.stopped[slot] = 0;
    copy_all(state.bias_ids + slot * kMaxLogitBias, reinterpret_cast<const TokenId*>(slab + start.bias_ids_at),
             start.sampling.num_bias);
    copy_all(state.bias_values + slot * kMaxLogitBias, reinterpret_cast<const float*>(slab + start.bias_values_at),
             start.sampling.num_bias);
    copy_all(state.stop_ids + slot * kMaxStopTokenIds, reinterpret_cast<const TokenId*>(slab + start.stop_ids_at),
             start.sampling.num_stop_ids);
  }
  const auto* blocks = reinterpret_cast<const SlabBlockPatch*>(slab + header.block_patches_at);
  for (int i = 0; i < header.num_block_patches; ++i) {
    const SlabBlockPatch& patch = blocks[i];
    copy_all(p.targets.block_table[patch.group] + patch.slot * p.targets.table_stride[patch.group] + patch.first,
             reinterpret_cast<const int32_t*>(slab + patch.values_at), patch.count);
  }
  const auto* logs = reinterpret_cast<const SlabLogPatch*>(slab + header.log_patches_at);
  for (int i = 0; i < header.num_log_patches; ++i) {
    const SlabLogPatch& patch = logs[i];
    copy_all(p.targets.state.token_log + patch.slot * p.targets.state.log_stride + patch.first,
             reinterpret_cast<const TokenId*>(slab + patch.values_at), patch.count);
  }
}

__global__ void __launch_bounds__(512) begin_kernel(const __grid_constant__ BeginParams p) {
  enter();
  __shared__ SlabHeader header;
  __shared__ StepState state;
  if (threadIdx.x == 0) {
    state = *p.state;
    state.launch = state.next_launch++;
    state.begun_ns = ptx::globaltimer_ns();
    header = *reinterpret_cast<const SlabHeader*>(p.slabs[state.launch % kStagingRing]);
    if (header.launch == state.launch) state.num_rows = header.num_rows, state.num_decode_rows = header.num_decode_rows;
    *p.state = state;
  }
  __syncthreads();
  if (header.launch == state.launch) {
    apply(p, p.slabs[state.launch % kStagingRing], header);
  } else {
    for (int r = threadIdx.x; r < state.num_rows; r += blockDim.x) {  // as advance_rows does
      BatchRow& row = p.targets.rows[r];
      row.kv_len++, row.state_from = row.state_save = 0;
    }
  }
  for (int r = state.num_rows + threadIdx.x; r < p.padded_rows; r += blockDim.x) {
    p.targets.rows[r] = {.slot = p.dummy_slot, .q_start = r, .q_len = 1, .kv_len = 0, .samples = 0};
  }
  __syncthreads();
  for (int r = threadIdx.x; r < state.num_decode_rows; r += blockDim.x) {  // as idle_stopped_rows does
    BatchRow& row = p.targets.rows[r];
    if (p.targets.state.stopped[row.slot] != 0) row.kv_len = row.samples = 0;
  }
  if (threadIdx.x < p.num_tiles) {
    const ExtendTiles& tiles = p.tiles[threadIdx.x];
    int32_t total = 0;
    tiles.tile_start[0] = 0;
    for (int r = p.first_extend_row; r < state.num_rows; ++r) {
      total += (p.targets.rows[r].q_len * tiles.gqa_ratio + tiles.tile_rows - 1) / tiles.tile_rows;
      tiles.tile_start[r - p.first_extend_row + 1] = total;
    }
  }
}

__global__ void end_kernel(const StepState* state, StepStamp* stamps) {
  StepStamp& stamp = stamps[state->launch % kStagingRing];
  stamp.begun_ns = state->begun_ns;
  stamp.done_ns = ptx::globaltimer_ns();
  __threadfence_system();
  stamp.launch_plus_one = state->launch + 1;
}

// ---- Tokens and weights ------------------------------------------------------------------------------------------

// Eight values of a row, from column k on (a multiple of 8).
__device__ __forceinline__ void load_8(const Matrix& m, int64_t row, int k, float (&out)[8]) {
  const char* values = static_cast<const char*>(m.values);
  const char* scales = static_cast<const char*>(m.scales);
  if (m.form == WeightForm::kBf16) {
    const uint4 v = *reinterpret_cast<const uint4*>(values + (row * m.cols + k) * 2);
    const auto* b = reinterpret_cast<const __nv_bfloat16*>(&v);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __bfloat162float(b[i]);
  } else if (m.form == WeightForm::kF16) {
    const uint4 v = *reinterpret_cast<const uint4*>(values + (row * m.cols + k) * 2);
    const auto* h = reinterpret_cast<const __half*>(&v);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __half2float(h[i]);
  } else if (m.form == WeightForm::kFp8) {
    const int blocks = (m.cols + kScaleBlock - 1) / kScaleBlock;
    const float scale = m.row_scale != nullptr     ? m.row_scale[row]
                        : m.block_scale != nullptr ? m.block_scale[row * blocks + k / kScaleBlock]
                                                   : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<uint8_t>(values[row * m.cols + k + i]);
      out[i] = __half2float(__ushort_as_half(static_cast<uint16_t>(ptx::halves_of_e4m3(byte)))) * scale;
    }
  } else if (m.form == WeightForm::kInt4) {
    const uint32_t v = *reinterpret_cast<const uint32_t*>(values + row * (m.cols / 2) + k / 2);
    const float2 s = __half22float2(
        *reinterpret_cast<const __half2*>(scales + row * ((m.cols / 32 * 4 + 15) / 16 * 16) + k / 32 * 4));
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(v >> int4_position(i) & 15) * s.x + s.y;
  } else if (m.form == WeightForm::kNvfp4) {
    const uint32_t v = *reinterpret_cast<const uint32_t*>(values + row * (m.cols / 2) + k / 2);
    const __half s = reinterpret_cast<const __half*>(scales + row * ((m.cols / 32 * 4 + 15) / 16 * 16))[k / 16];
    const float d = __half2float(s) * (Form<WeightForm::kNvfp4>::kFactor * (m.row_scale != nullptr ? m.row_scale[row] : 1.0f));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t code = v >> int4_position(i);
      out[i] = __half2float(__ushort_as_half(static_cast<uint16_t>((code & 8) << 12 | (code & 7) << 9))) * d;
    }
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(values + row * m.cols + k);
    const auto* s = reinterpret_cast<const __half*>(scales + row * ((m.cols / 32 * 8 + 15) / 16 * 16) + k / 32 * 8);
    const float d = __half2float(s[k % 32 / 16]), base = __half2float(s[2]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>((i < 4 ? v.x : v.y) >> (8 * (i % 4)))) * d + base;
    }
  }
}

// Pairs of values of a token, from column k on, where a projection reads them.
template <int N>
__device__ __forceinline__ void store_pairs(XOrder order, void* row, int k, const uint32_t (&pairs)[N]) {
  auto* to = static_cast<uint16_t*>(row);
  if (order == XOrder::kHalf4 || order == XOrder::kHalf8) {
#pragma unroll
    for (int j = 0; j < N; ++j) *reinterpret_cast<uint32_t*>(to + x_position(order, k + 2 * j)) = pairs[j];
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint4*>(to + k) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  } else {
    *reinterpret_cast<uint2*>(to + k) = {pairs[0], pairs[1]};
  }
}
// The same from fp32: rounded to bf16, whatever the order, so that x has one precision for every number of tokens.
template <int N>
__device__ __forceinline__ void store_x(XOrder order, void* row, int k, const float (&v)[N]) {
  uint32_t pairs[N / 2];
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    pairs[j] = ptx::pack_bf16(v[2 * j], v[2 * j + 1]);
    if (order != XOrder::kBf16) pairs[j] = half_pair(pairs[j]);
  }
  store_pairs(order, row, k, pairs);
}

__global__ void __launch_bounds__(kThreads)
    embed_kernel(StepRows rows, RowStateView state, Matrix table, float scale, float* x, NextNorm next) {
  enter();
  const int t = blockIdx.x, hidden = table.cols;
  const BatchRow row = rows.rows[row_of(rows, t)];
  const bool idle = row.kv_len == 0;
  int id = idle ? 0 : state.token_log[row.slot * state.log_stride + position_of(row, t)];
  id = min(max(id, 0), table.rows - 1);
  if (idle) scale = 0;
  float squares = 0;
  for (int k = threadIdx.x * 8; k < hidden; k += kThreads * 8) {
    float v[8];
    load_8(table, id, k, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= scale, squares += v[i] * v[i];
    float* out = x + int64_t{t} * hidden + k;
    *reinterpret_cast<float4*>(out) = {v[0], v[1], v[2], v[3]};
    *reinterpret_cast<float4*>(out + 4) = {v[4], v[5], v[6], v[7]};
    if (next.next == nullptr) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= next.weight[k + i];
    store_x(XOrder::kBf16, next.next + int64_t{t} * hidden, k, v);
  }
  if (next.next == nullptr) return;
  squares = block_sum(squares);
  if (threadIdx.x == 0) next.squares[t] = squares;
}

// ---- Norms -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float4 load_4(const float* x) { return __ldcg(reinterpret_cast<const float4*>(x)); }

__device__ void normalise(const float* x, int hidden, const float* weight, float eps, XOrder order,
                          __nv_bfloat16* out) {
  float squares = 0;
  for (int k = threadIdx.x * 4; k < hidden; k += kThreads * 4) {
    const float4 v = load_4(x + k);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float factor = rsqrtf(block_sum(squares) / static_cast<float>(hidden) + eps);
  for (int k = threadIdx.x * 4; k < hidden; k += kThreads * 4) {
    const float4 v = load_4(x + k), w = *reinterpret_cast<const float4*>(weight + k);
    const float y[4] = {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w};
    store_x(order, out, k, y);
  }
}

__global__ void __launch_bounds__(kThreads)
norm_kernel(const float* x, int hidden, const float* weight, float eps, XOrder order, __nv_bfloat16* out) {
  enter();
  normalise(x + int64_t{blockIdx.x} * hidden, hidden, weight, eps, order, out + int64_t{blockIdx.x} * hidden);
}

__global__ void __launch_bounds__(kThreads)
norm_last_kernel(StepRows rows, const float* x, int hidden, const float* weight, float eps, XOrder order,
                 __nv_bfloat16* out) {
  enter();
  const BatchRow row = rows.rows[blockIdx.x];
  __nv_bfloat16* to = out + int64_t{blockIdx.x} * hidden;
  if (row.samples == 0) {
    for (int k = threadIdx.x; k < hidden; k += kThreads) to[k] = __float2bfloat16(0.0f);
    return;
  }
  normalise(x + int64_t{row.q_start + row.q_len - 1} * hidden, hidden, weight, eps, order, to);
}

// ---- q|k|v -------------------------------------------------------------------------------------------------------

constexpr int kMaxHeadDim = 512;

// What the pool keeps of two values: NaN becomes 0, all else the nearest finite bf16 or e4m3. Attention gives a key that a
// row does not see the weight 0, and 0 times NaN would be NaN for whoever has the block next.
template <typename Pool>
__device__ __forceinline__ void store_finite(Pool* at, float low, float high) {
  constexpr bool kFp8 = sizeof(Pool) == 1;
  constexpr float kMost = kFp8 ? 448.0f : 3.3895314e38f;
  const auto finite = [](float v) { return isnan(v) ? 0.0f : fminf(fmaxf(v, -kMost), kMost); };
  if constexpr (kFp8) {
    *reinterpret_cast<uint16_t*>(at) = __nv_cvt_float2_to_fp8x2({finite(low), finite(high)}, __NV_SATFINITE, __NV_E4M3);
  } else {
    *reinterpret_cast<uint32_t*>(at) = ptx::pack_bf16(finite(low), finite(high));
  }
}

__global__ void __launch_bounds__(kThreads) qkv_kernel(StepRows rows, const __grid_constant__ QkvParams p) {
  __shared__ float heads[kWarps][kMaxHeadDim];
  enter();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_heads = p.q_heads + 2 * p.kv_heads, dim = p.head_dim;
  const int64_t unit = int64_t{blockIdx.x} * kWarps + warp;
  if (unit >= int64_t{rows.num_tokens} * num_heads) return;
  const int t = static_cast<int>(unit / num_heads), head = static_cast<int>(unit % num_heads);
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads;
  const int h = is_q ? head : (head - p.q_heads) % p.kv_heads;
  const BatchRow row = rows.rows[row_of(rows, t)];
  if (row.kv_len == 0 && !is_q) return;  // idle
  const int position = position_of(row, t);
  const int stored_heads = p.q_heads + (p.keys_are_values ? 1 : 2) * p.kv_heads;
  const int stored = is_v && p.keys_are_values ? head - p.kv_heads : head;
  const float* from = p.qkv + (int64_t{t} * stored_heads + stored) * dim;
  const float* bias = is_q ? p.q_bias : is_v ? p.v_bias : p.k_bias;
  float* v = heads[warp];
  float squares = 0;
  for (int d = lane; d < dim; d += 32) {
    const float value = __ldcg(from + d) + (bias != nullptr ? bias[h * dim + d] : 0.0f);
    v[d] = value, squares += value * value;
  }
  const float* norm = is_q ? p.q_norm : is_v ? p.v_norm : p.k_norm;
  if (norm != nullptr) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
    const float factor = rsqrtf(squares / static_cast<float>(dim) + (is_q ? p.q_eps : is_v ? p.v_eps : p.k_eps));
    for (int d = lane; d < dim; d += 32) v[d] *= factor * norm[d];
  }
  __syncwarp();
  if (!is_v) {
    const int half = p.rotary_dim / 2;
    for (int i = lane; i < half; i += 32) {
      float sine, cosine;
      sincosf(static_cast<float>(position) * p.inv_freq[i], &sine, &cosine);
      sine *= p.rope_scale, cosine *= p.rope_scale;
      const float a = v[i], b = v[i + half];
      v[i] = a * cosine - b * sine;
      v[i + half] = b * cosine + a * sine;
    }
    __syncwarp();
  }
  if (is_q) {
    __nv_bfloat16* to = p.q + (int64_t{t} * p.q_heads + h) * dim;
    for (int d = lane * 2; d < dim; d += 64) *reinterpret_cast<uint32_t*>(to + d) = ptx::pack_bf16(v[d], v[d + 1]);
    return;
  }
  const int padded = padded_dim(dim);
  const int64_t block = p.block_table[row.slot * p.table_stride + position / kBlockTokens];
  const int64_t tile = (block * p.kv_heads + h) * kv_tile_values(padded) + (is_v ? kBlockTokens * padded : 0);
  const int token = position % kBlockTokens;
  if (p.fp8) {
    uint8_t* to = static_cast<uint8_t*>(p.pool) + tile;
    for (int d = lane * 2; d < dim; d += 64) store_finite(to + swizzled_fp8(token, d), v[d], v[d + 1]);
    return;
  }
  __nv_bfloat16* to = static_cast<__nv_bfloat16*>(p.pool) + tile;
  for (int d = lane * 2; d < dim; d += 64) store_finite(to + swizzled(token, d), v[d], v[d + 1]);
}

// ---- Elementwise -------------------------------------------------------------------------------------------------

// Eight values of a product's 16-bit output.
__device__ __forceinline__ void load_product(const __nv_bfloat16* from, bool half, float (&out)[8]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 h = __half22float2(halves_of(pairs[j]));
    out[2 * j] = half ? h.x * kHalfFactor : __uint_as_float(pairs[j] << 16);
    out[2 * j + 1] = half ? h.y * kHalfFactor : __uint_as_float(pairs[j] & 0xffff0000u);
  }
}

__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ GateParams p) {
  enter();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (i >= int64_t{p.tokens} * p.width) return;
  const int64_t t = i / p.width;
  const int k = static_cast<int>(i % p.width);
  const __nv_bfloat16* from = p.gate_up + t * 2 * p.width + k;
  float v[8], up[8];
  load_product(from, p.gate_half, v);
  load_product(from + p.width, p.up_half, up);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float a = v[j] + (p.gate_bias != nullptr ? p.gate_bias[k + j] : 0.0f);
    const float b = up[j] + (p.up_bias != nullptr ? p.up_bias[k + j] : 0.0f);
    v[j] = activate(a, p.gelu) * b;
  }
  store_x(p.order, p.out + t * p.width, k, v);
}

__global__ void __launch_bounds__(kThreads) gate_attention_kernel(__nv_bfloat16* attended, const float* gate, int64_t count) {
  enter();
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4; i < count; i += int64_t{gridDim.x} * kThreads * 4) {
    const float4 g = __ldcg(reinterpret_cast<const float4*>(gate + i));
    auto* at = reinterpret_cast<__nv_bfloat162*>(attended + i);
    const float2 a = __bfloat1622float2(at[0]), b = __bfloat1622float2(at[1]);
    at[0] = __floats2bfloat162_rn(a.x / (1.0f + __expf(-g.x)), a.y / (1.0f + __expf(-g.y)));
    at[1] = __floats2bfloat162_rn(b.x / (1.0f + __expf(-g.z)), b.y / (1.0f + __expf(-g.w)));
  }
}

__global__ void __launch_bounds__(kThreads) bias_kernel(float* x, int width, const float* bias) {
  enter();
  for (int k = threadIdx.x; k < width; k += kThreads) x[int64_t{blockIdx.x} * width + k] += bias[k];
}

__global__ void __launch_bounds__(kThreads) cap_kernel(float* x, int64_t count, float cap) {
  enter();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    x[i] = cap * tanhf(x[i] / cap);
  }
}

__global__ void __launch_bounds__(kThreads)
    order_kernel(const __nv_bfloat16* x, int64_t count, int cols, XOrder order, uint16_t* out) {
  enter();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (i >= count) return;
  const int64_t row = i / cols * cols;
  const int k = static_cast<int>(i - row);
  const uint4 v = __ldcg(reinterpret_cast<const uint4*>(x + i));
  const uint32_t pairs[4] = {half_pair(v.x), half_pair(v.y), half_pair(v.z), half_pair(v.w)};
  store_pairs(order, out + row, k, pairs);
}

// Clamped to the largest half; what is no number stays none.
__device__ __forceinline__ float saturated(float v) {
  constexpr float kMostHalf = 65504.0f;
  return fabsf(v) > kMostHalf ? copysignf(kMostHalf, v) : v;
}

__global__ void __launch_bounds__(kThreads) widen_kernel(Matrix m, __half* out) {
  enter();
  const int per_row = m.cols / 8;
  const int64_t total = int64_t{m.rows} * per_row;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    float v[8];
    load_8(m, i / per_row, static_cast<int>(i % per_row) * 8, v);
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = bits_of(__floats2half2_rn(saturated(v[2 * j]), saturated(v[2 * j + 1])));
    *reinterpret_cast<uint4*>(out + i * 8) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

int blocks_for(int64_t items) { return static_cast<int>((items + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t begin_step(const BeginParams& p, cudaStream_t stream) { return launch(begin_kernel, 1, 512, stream, p); }
// Launched without overlap: all memory of the kernels before must be where the host sees it.
cudaError_t end_step(const StepState* state, StepStamp* stamps, cudaStream_t stream) {
  end_kernel<<<1, 1, 0, stream>>>(state, stamps);
  return cudaGetLastError();
}

cudaError_t embed(const StepRows& rows, const RowStateView& state, const Matrix& table, float scale, float* x,
                  const NextNorm& next, cudaStream_t stream) {
  return launch(embed_kernel, rows.num_tokens, kThreads, stream, rows, state, table, scale, x, next);
}
cudaError_t rms_norm(const float* x, int tokens, int hidden, const float* weight, float eps, XOrder order,
                     __nv_bfloat16* out, cudaStream_t stream) {
  return launch(norm_kernel, tokens, kThreads, stream, x, hidden, weight, eps, order, out);
}
cudaError_t rms_norm_last(const StepRows& rows, const float* x, int hidden, const float* weight, float eps,
                          XOrder order, __nv_bfloat16* out, cudaStream_t stream) {
  return launch(norm_last_kernel, rows.num_rows, kThreads, stream, rows, x, hidden, weight, eps, order, out);
}
cudaError_t finish_qkv(const StepRows& rows, const QkvParams& p, cudaStream_t stream) {
  const int64_t units = int64_t{rows.num_tokens} * (p.q_heads + 2 * p.kv_heads);
  return launch(qkv_kernel, static_cast<int>((units + kWarps - 1) / kWarps), kThreads, stream, rows, p);
}
cudaError_t gate(const GateParams& p, cudaStream_t stream) {
  return launch(gate_kernel, blocks_for(int64_t{p.tokens} * p.width / 8), kThreads, stream, p);
}
cudaError_t gate_attention(__nv_bfloat16* attended, const float* gate, int64_t count, cudaStream_t stream) {
  return launch(gate_attention_kernel, std::min(blocks_for(count / 4), 2048), kThreads, stream, attended, gate, count);
}
cudaError_t add_bias(float* x, int tokens, int width, const float* bias, cudaStream_t stream) {
  return launch(bias_kernel, tokens, kThreads, stream, x, width, bias);
}
cudaError_t soft_cap(float* x, int64_t count, float cap, cudaStream_t stream) {
  return launch(cap_kernel, std::min(blocks_for(count), 1024), kThreads, stream, x, count, cap);
}
cudaError_t order_tokens(const __nv_bfloat16* x, int tokens, int cols, XOrder order, void* out, cudaStream_t stream) {
  const int64_t count = int64_t{tokens} * cols;
  return launch(order_kernel, blocks_for(count / 8), kThreads, stream, x, count, cols, order,
                static_cast<uint16_t*>(out));
}
cudaError_t widen(const Matrix& m, __half* out, cudaStream_t stream) {
  const int blocks = std::min(blocks_for(int64_t{m.rows} * m.cols / 8), 2048);
  return launch(widen_kernel, blocks, kThreads, stream, m, out);
}

}  // namespace tailrace::cuda
