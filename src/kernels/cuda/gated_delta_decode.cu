// The recurrent form: o = S^T q behind S = e^g S + k (beta (v - e^g S^T k))^T, one token a row. A
// state is read and written once: the bound is its bytes, twice. A CTA takes 32 columns of one
// v-head's state in registers, and the CTAs of a head are a cluster, which its norm needs: o is a
// row of all of its columns. S^T k and S^T q come from one pass over S, since o = e^g S^T q + u (k
// q). Each CTA convolves the channels it needs itself; q and k of a k-head are convolved by all of
// its CTAs, and kept by one (gated_delta.h: the ring). For few rows b and a are made here too, the
// CTAs of a head sharing out their columns. What earlier steps left (state, inputs, weights) is
// asked for before the kernel before has ended: a step's rows are there since its first kernel,
// behind which that of attention's plan begins only when it has ended.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gated_delta.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32,
              kLanes = kDeltaSlice / 4;     // lanes: of four columns each
constexpr int kGroups = kThreads / kLanes;  // of rows of S

// Over the lanes of a warp that hold the same columns.
__device__ __forceinline__ float4 sum_groups(float4 v) {
#pragma unroll
  for (int o = kLanes; o < 32; o *= 2) {
    v.x += __shfl_xor_sync(~0u, v.x, o), v.y += __shfl_xor_sync(~0u, v.y, o);
    v.z += __shfl_xor_sync(~0u, v.z, o), v.w += __shfl_xor_sync(~0u, v.w, o);
  }
  return v;
}

// A channel of the row's token behind convolution and SiLU.
struct Channel {
  int channel;
  float4 weight;
  float old[3];  // inputs one, two, three tokens before
  __device__ __forceinline__ void ask(const DeltaParams& p, const BatchRow& row, int position, int at) {
    channel = at;
    weight = *reinterpret_cast<const float4*>(p.conv + int64_t{channel} * kDeltaInputs);
    const float* inputs = delta_inputs(p, source_slot(p, row)) + channel;
#pragma unroll
    for (int back = 1; back <= 3; ++back)
      old[back - 1] = position >= back ? __ldcg(inputs + input_at(p, position - back)) : 0.0f;
  }
  // Its inputs are kept where `keeps`.
  __device__ __forceinline__ float convolve(const DeltaParams& p, const BatchRow& row, int token, int position,
                                            bool keeps) const {
    const float x = __ldcg(p.in + token * p.in_stride + channel);
    if (keeps) keep_inputs(p, row, channel, position, position + 1, [&](int) { return x; });
    return silu(weight.x * old[2] + weight.y * old[1] + weight.z * old[0] + weight.w * x);
  }
};

// This CTA's columns of b and a of a v-head: half of the threads take a row of weights each.
struct GateParts {
  static constexpr int kHalf = kThreads / 2;
  const __nv_bfloat16* weights;
  uint4 first;  // of the weights, where the thread has any
  int begin, end;
  __device__ __forceinline__ void ask(const DeltaGates& g, int v_head, int slice, int slices) {
    const int columns = g.hidden / slices, half = static_cast<int>(threadIdx.x) / kHalf;
    weights = (half == 0 ? g.b : g.a) + int64_t{v_head} * g.hidden;
    end = (slice + 1) * columns, begin = slice * columns + static_cast<int>(threadIdx.x) % kHalf * 8;
    first = begin < end ? *reinterpret_cast<const uint4*>(weights + begin) : uint4{};
  }
  __device__ __forceinline__ float sum(const DeltaGates& g, int token) const {
    const __nv_bfloat16* x = g.x + int64_t{token} * g.hidden;
    float total = 0;
    for (int k = begin; k < end; k += kHalf * 8) {
      const uint4 w = k == begin ? first : *reinterpret_cast<const uint4*>(weights + k),
                  v = __ldcg(reinterpret_cast<const uint4*>(x + k));
      const uint32_t ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total += __uint_as_float(ws[i] << 16) * __uint_as_float(vs[i] << 16);
        total += __uint_as_float(ws[i] & 0xffff0000u) * __uint_as_float(vs[i] & 0xffff0000u);
      }
    }
    return warp_sum(total);
  }
};
// Of the norm in front of b and a; by every lane of a warp alike.
__device__ __forceinline__ float gate_norm(const DeltaGates& g, int token) {
  float total = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < g.num_squares; i += 32)
    total += __ldcg(g.squares + int64_t{i} * g.squares_stride + token);
  return rsqrtf(warp_sum(total) / static_cast<float>(g.hidden) + g.eps);
}

template <int D, bool GATES>
__global__ void __launch_bounds__(kThreads)
    recurrent_kernel(const __grid_constant__ DeltaParams p) {
  constexpr int kRows = D / kGroups, kSlices = D / kDeltaSlice;
  constexpr int kMixed = 2 * D + kDeltaSlice, kChannels = (kMixed + kThreads - 1) / kThreads;  // of a thread
  __shared__ __align__(16) float mixed[kMixed];  // q, k, and v of the CTA's columns
  __shared__ __align__(16) float part[2][kWarps][kDeltaSlice];
  __shared__ __align__(16) float dots[kWarps][4];
  __shared__ __align__(16) float square[4];
  __shared__ __align__(16) float gate_parts[4];  // b, b, a, a: a warp's part
  const int slice = blockIdx.x, v_head = blockIdx.y, token = blockIdx.z, thread = threadIdx.x;
  const int ratio = p.v_heads / p.k_heads, k_head = v_head / ratio, keys = p.k_heads * D;
  ptx::let_next_kernel_start();
  const BatchRow row = p.rows.rows[token];
  if (row.kv_len == 0) {
    ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for those before it, too
    return;
  }
  const int position = row.kv_len - 1, lane = thread % kLanes, group = thread / kLanes;
  const int64_t at = (int64_t{v_head} * D + group) * D + slice * kDeltaSlice + lane * 4;
  float4 state[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    state[n] = row.state_from == kZeroState
                   ? float4{0, 0, 0, 0}
                   : __ldcs(reinterpret_cast<const float4*>(delta_state(p, source_slot(p, row)) +
                                                            at + int64_t{n} * kGroups * D));
  }
  Channel channels[kChannels];
#pragma unroll
  for (int n = 0; n < kChannels; ++n) {
    const int i = thread + n * kThreads;
    const int channel = i < 2 * D ? (i < D ? 0 : keys - D) + k_head * D + i
                                  : 2 * keys + v_head * D + slice * kDeltaSlice + i - 2 * D;
    if (i < kMixed) channels[n].ask(p, row, position, channel);
  }
  GateParts gates;
  if constexpr (GATES) gates.ask(p.gates, v_head, slice, kSlices);
  ptx::wait_for_previous_kernel();
  if constexpr (GATES) {
    const float part_sum = gates.sum(p.gates, token);
    if (thread % 32 == 0) gate_parts[thread / 32] = part_sum;
    if constexpr (kSlices > 1) cluster_arrive();
  }
#pragma unroll
  for (int n = 0; n < kChannels; ++n) {
    const int i = thread + n * kThreads;
    if (i < kMixed)
      mixed[i] = channels[n].convolve(p, row, token, position, i >= 2 * D || (slice == 0 && v_head % ratio == 0));
  }
  float b = 0, a = 0;
  if constexpr (GATES) {
    b = a = gate_norm(p.gates, token);
  } else {
    b = projected_b(p, token, v_head), a = projected_a(p, token, v_head);
  }
  __syncthreads();
  float qq = 0, kk = 0, qk = 0;
  for (int i = thread; i < D; i += kThreads)
    qq += mixed[i] * mixed[i], kk += mixed[D + i] * mixed[D + i], qk += mixed[i] * mixed[D + i];
  qq = warp_sum(qq), kk = warp_sum(kk), qk = warp_sum(qk);
  if (thread % 32 == 0)
    dots[thread / 32][0] = qq, dots[thread / 32][1] = kk, dots[thread / 32][2] = qk;
  float4 sk = {0, 0, 0, 0}, sq = {0, 0, 0, 0};  // S^T k and S^T q of the unnormed
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    add_scaled(sk, state[n], mixed[D + group + n * kGroups]);
    add_scaled(sq, state[n], mixed[group + n * kGroups]);
  }
  sk = sum_groups(sk), sq = sum_groups(sq);
  if (thread % 32 < kLanes) {
    *reinterpret_cast<float4*>(&part[0][thread / 32][lane * 4]) = sk;
    *reinterpret_cast<float4*>(&part[1][thread / 32][lane * 4]) = sq;
  }
  __syncthreads();
  qq = kk = qk = 0, sk = sq = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    qq += dots[w][0], kk += dots[w][1], qk += dots[w][2];
    add_scaled(sk, *reinterpret_cast<const float4*>(&part[0][w][lane * 4]), 1);
    add_scaled(sq, *reinterpret_cast<const float4*>(&part[1][w][lane * 4]), 1);
  }
  const float q_scale = rsqrtf(qq + GatedDeltaBlock::kL2Eps) * rsqrtf(static_cast<float>(D)),
              k_scale = rsqrtf(kk + GatedDeltaBlock::kL2Eps);
  if constexpr (GATES) {
    float4 sums = {0, 0, 0, 0};
    if constexpr (kSlices > 1) {
      cluster_wait();
#pragma unroll
      for (int s = 0; s < kSlices; ++s) add_scaled(sums, load_remote_16(ptx::smem_address(gate_parts), s), 1);
    } else {
      sums = *reinterpret_cast<const float4*>(gate_parts);
    }
    b *= sums.x + sums.y, a *= sums.z + sums.w;
  }
  const float keep = __expf(delta_decay(p, a, v_head)), beta = delta_beta(b),
              both = qk * q_scale * k_scale;
  const float4 v = *reinterpret_cast<const float4*>(&mixed[2 * D + lane * 4]);
  const float forget = keep * k_scale, recall = keep * q_scale;
  const float4 u = {beta * (v.x - forget * sk.x), beta * (v.y - forget * sk.y),
                    beta * (v.z - forget * sk.z), beta * (v.w - forget * sk.w)};
  float* own = delta_state(p, row.slot) + at;
  const int64_t target = target_slot(p, row);
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const float k = mixed[D + group + n * kGroups] * k_scale;
    const float4 s = {keep * state[n].x + k * u.x, keep * state[n].y + k * u.y,
                      keep * state[n].z + k * u.z, keep * state[n].w + k * u.w};
    __stcs(reinterpret_cast<float4*>(own + int64_t{n} * kGroups * D), s);
    if (target >= 0)
      __stcs(reinterpret_cast<float4*>(delta_state(p, target) + at + int64_t{n} * kGroups * D), s);
  }
  const float4 o = {recall * sq.x + u.x * both, recall * sq.y + u.y * both,
                    recall * sq.z + u.z * both, recall * sq.w + u.w * both};
  float total = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
  if constexpr (kSlices > 1) {
    if (thread == 0) square[0] = total;
    cluster_barrier();
    total = 0;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) total += load_remote_16(ptx::smem_address(square), s).x;
  }
  if (group == 0) {
    const float factor = rsqrtf(total / D + p.eps);
    const int column = slice * kDeltaSlice + lane * 4;
    const float4 w = *reinterpret_cast<const float4*>(p.norm + column);
    const float4 z = __ldcg(reinterpret_cast<const float4*>(p.in + token * p.in_stride +
                                                            channels_of(p) + v_head * D + column));
    const uint2 packed = {
        ptx::pack_bf16(o.x * factor * w.x * silu(z.x), o.y * factor * w.y * silu(z.y)),
        ptx::pack_bf16(o.z * factor * w.z * silu(z.z), o.w * factor * w.w * silu(z.w))};
    *reinterpret_cast<uint2*>(p.out + (int64_t{token} * p.v_heads + v_head) * D + column) = packed;
  }
  if constexpr (kSlices > 1) cluster_barrier();  // nobody leaves while its square may be read
}

template <int D, bool GATES>
cudaError_t launch(const DeltaParams& p, cudaStream_t stream) {
  constexpr int kSlices = D / kDeltaSlice;
  const dim3 grid(kSlices, static_cast<unsigned>(p.v_heads),
                  static_cast<unsigned>(p.rows.num_decode_rows));
  return launch_clustered(kSlices, recurrent_kernel<D, GATES>, grid, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t run_delta_decode(const DeltaParams& p, cudaStream_t stream) {
  return by_delta_dim(p.dim, [&]<int D>() {
    return p.ba == nullptr ? launch<D, true>(p, stream) : launch<D, false>(p, stream);
  });
}

}  // namespace tailrace::cuda
