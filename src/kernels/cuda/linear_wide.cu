// Projections of more tokens: y = W x on wgmma, weights the 64 rows of an operand, tokens its N columns.
//
// Mapping. A tile is 128 output rows (gated: 64 of gate and 64 of up) times N = 32, 64, 128 or 256 tokens; a CTA takes
// a range of the tile's columns of W. A warp asks the copy engine for boxes of W, its scales and x, slice by slice,
// into a ring; two warp groups of 64 rows each multiply. bf16 weights go to the tensor cores from shared memory. All
// other forms are read by ldmatrix as they are stored, turned into halves in registers, and are the register operand; x
// comes as halves in the order that ldmatrix leaves (XOrder), so that no value is moved between lanes. While one group
// converts, the other's products run.
// Few tokens. Tiles are too few for the SMs: the CTAs of a cluster share a tile's columns and add their sums in rank
// order through each other's shared memory, so nothing goes through global memory and nothing depends on timing. Two
// CTAs an SM hide ends.
// Norm and launch: as linear_decode.
// Bound: up to 64 tokens bytes of weights / HBM bandwidth (x, read again by each tile, comes from the L2: N * 2 bytes a
// column beside 128 values of W); from about 256 tokens 2 * rows * cols * tokens FLOP over the bf16 rate.
#include "kernels/cuda/linear_wide.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_wide_finish.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"

namespace tailrace::cuda {
namespace {

using namespace wide;

// A warp group asks for copies, so that registers can be moved from it.
constexpr int kThreads = kConsumers + 128;
constexpr int kHelpers = kThreads - kConsumers - 32;  // threads of it that ask for nothing
// Named barriers: the ring is free and factors are there; sums are there.
constexpr int kRingRead = 1, kJoinWritten = 2;
// Shared memory of a CTA that shares its SM, or does not.
constexpr int kHalfRoom = 113 * 1024, kWholeRoom = 226 * 1024;
constexpr int kMaxStages = 8;

// N: tokens of a tile. BLOCKS: e4m3 with scales of 128 x 128 blocks, whose sums are scaled apart.
template <WeightForm F, int N, bool BLOCKS>
struct Config {
  static constexpr WeightForm kForm = F;
  static constexpr int kTokens = N;
  static constexpr bool kBlocks = BLOCKS;
  static constexpr bool kConverts = F != WeightForm::kBf16;
  // Columns of a stage: rows of 64 or 128 bytes.
  static constexpr int kSlice = four_bits(F) ? 128 : Form<F>::kValues == 8 || N == 256 ? 64 : 128;
  static constexpr int kSteps = kSlice / 16;  // of the tensor cores
  static constexpr int kRowBytes = Form<F>::value_bytes(kSlice), kScaleRow = Form<F>::scale_bytes(kSlice);
  static constexpr int kScalesAt = kTileRows * kRowBytes, kXAt = kScalesAt + kTileRows * kScaleRow;
  static constexpr int kXPart = N * 128;      // 64 columns of x
  static constexpr int kStageBytes = kXAt + kSlice / 64 * kXPart;
  static constexpr int kCtasPerSm = N <= 64 ? 2 : 1;
  static constexpr int kProducerRegisters = kCtasPerSm == 2 ? 32 : 40, kConsumerRegisters = kCtasPerSm == 2 ? 104 : 232;
  static constexpr int kFixedBytes = 2 * kMaxStages * 8 + N * 4;  // barriers and the tokens' factors
  static constexpr int kRoom = (kCtasPerSm == 2 ? kHalfRoom : kWholeRoom) - kFixedBytes;
  static constexpr int kStages = std::min(kMaxStages, kRoom / kStageBytes);
  static constexpr int kRingBytes = std::max(kStages * kStageBytes, N * kJoinStride * 4);
  static constexpr int kSharedBytes = kRingBytes + kFixedBytes;
  static_assert(kStages >= 3 && kSharedBytes <= kRoom + kFixedBytes && kStageBytes % 1024 == 0);
  static_assert(!BLOCKS || kSlice == kScaleBlock);
};

struct Ring {
  char* stages;
  uint64_t *full, *empty;
  float* factor;  // of each token
};

template <class C>
__device__ __forceinline__ void ask_weights(const Wide& w, const HalfTile (&halves)[2], char* stage, int slice,
                                            uint64_t* full) {
  const uint32_t to = ptx::smem_address(stage);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const HalfTile& h = halves[half];
    copy_box(to + half * kGroupRows * C::kRowBytes, w.values + h.matrix, slice * C::kRowBytes, h.row, full);
    if constexpr (C::kScaleRow > 0) {
      copy_box(to + C::kScalesAt + half * kGroupRows * C::kScaleRow, w.scales + h.matrix, slice * C::kScaleRow, h.row,
               full);
    }
  }
}

template <class C>
__device__ __forceinline__ void ask_tokens(const Wide& w, int token, char* stage, int slice, uint64_t* full) {
#pragma unroll
  for (int part = 0; part < C::kSlice / 64; ++part) {
    copy_box(ptx::smem_address(stage) + C::kXAt + part * C::kXPart, &w.x, (slice * C::kSlice + part * 64) * 2, token,
             full);
  }
}

// One thread fills the ring: weights at once, x when the kernel before has ended.
template <class C>
__device__ void produce(const Wide& w, const Work& work, const Ring& ring) {
  const HalfTile halves[2] = {half_tile(w.p, work.row_tile, 0), half_tile(w.p, work.row_tile, 1)};
  const int first = min(C::kStages, work.end - work.begin), token = work.token_tile * C::kTokens;
  for (int i = 0; i < first; ++i) {
    ptx::mbarrier_expect(ring.full + i, C::kStageBytes);
    ask_weights<C>(w, halves, ring.stages + i * C::kStageBytes, work.begin + i, ring.full + i);
  }
  prefetch_tensor_map(&w.x);
  ptx::wait_for_previous_kernel();
  for (int i = 0; i < first; ++i) {
    ask_tokens<C>(w, token, ring.stages + i * C::kStageBytes, work.begin + i, ring.full + i);
  }
  int stage = 0;
  uint32_t phase = 0;
  for (int slice = work.begin + first; slice < work.end; ++slice) {
    ptx::mbarrier_wait(ring.empty + stage, phase);
    ptx::mbarrier_expect(ring.full + stage, C::kStageBytes);
    char* to = ring.stages + stage * C::kStageBytes;
    ask_weights<C>(w, halves, to, slice, ring.full + stage);
    ask_tokens<C>(w, token, to, slice, ring.full + stage);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
}

// A warp's 16 rows of a stage as operands. ldmatrix gives lane (row, c) word c of each 16-byte piece: x_position
// agrees.
template <class C>
__device__ __forceinline__ void load_weights(uint32_t values, uint32_t scales, int lane, uint32_t (&a)[C::kSteps][4]) {
  using W = Form<C::kForm>;
  constexpr int kPairs = W::kValues / 8;  // of a word
  const int row = lane % 16, swizzle = C::kRowBytes == 128 ? row & 7 : row >> 1 & 3;
#pragma unroll
  for (int load = 0; load < C::kRowBytes / 32; ++load) {
    uint32_t v[4];
    ptx::ldmatrix_x4(v, values + row * C::kRowBytes + ((load * 2 + lane / 16) ^ swizzle) * 16);
    uint2 scale[2] = {};  // of both pieces; rows r and r + 8
    if constexpr (C::kScaleRow > 0) {
      scale[0] = ptx::load_shared_8(scales + lane / 4 * C::kScaleRow + load * 8);
      scale[1] = ptx::load_shared_8(scales + (lane / 4 + 8) * C::kScaleRow + load * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = i / 2, upper = i % 2;
      __half2 d{}, m{};
      if constexpr (C::kForm == WeightForm::kInt4) {
        const __half2 s = halves_of(piece == 0 ? scale[upper].x : scale[upper].y);
        d = __low2half2(s), m = __high2half2(s);
      } else if constexpr (C::kForm == WeightForm::kNvfp4) {  // a lane's word lies in one half of the block
        const __half2 s = halves_of(piece == 0 ? scale[upper].x : scale[upper].y);
        d = lane % 4 < 2 ? __low2half2(s) : __high2half2(s);
      } else if constexpr (C::kForm == WeightForm::kInt8) {
        const __half2 s = halves_of(scale[upper].x);
        d = piece == 0 ? __low2half2(s) : __high2half2(s), m = __low2half2(halves_of(scale[upper].y));
      }
      uint32_t pairs[kPairs];
      W::word(v[i], d, m, pairs);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int pair = piece * kPairs + j;
        a[load * kPairs + pair / 2][pair % 2 * 2 + upper] = pairs[j];
      }
    }
  }
}

// Issues the products of a stage; the caller commits.
template <class C>
__device__ __forceinline__ void issue(float (&sums)[C::kTokens / 2], const uint32_t (&a)[C::kSteps][4], uint32_t values,
                                      uint32_t x) {
#pragma unroll
  for (int k = 0; k < C::kSteps; ++k) {
    const uint64_t b = ptx::descriptor(x + k / 4 * C::kXPart + k % 4 * 32);
    if constexpr (C::kConverts) {
      ptx::wgmma_rs<0, true>(sums, a[k], b, C::kBlocks ? k > 0 : 1);
    } else {
      ptx::wgmma_ss<0>(sums, ptx::descriptor(values + k * 32), b, 1);
    }
  }
}

// The sums of this warp group's 64 rows over the CTA's columns.
template <class C>
__device__ __forceinline__ void multiply(const Wide& w, const Work& work, const Ring& ring, int group,
                                         float (&sums)[C::kTokens / 2]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const float* block_scale[2] = {};
  if constexpr (C::kBlocks) {
    const HalfTile h = half_tile(w.p, work.row_tile, group);
    const Matrix& m = w.p.matrix[h.matrix];
    for (int i = 0; i < 2; ++i) {  // rows beyond the end take the last row's
      const int row = min(h.row + warp * 16 + lane / 4 + i * 8, m.rows - 1);
      block_scale[i] = m.block_scale + int64_t{row} * ((m.cols + kScaleBlock - 1) / kScaleBlock);
    }
  }
  int stage = 0;
  uint32_t phase = 0;
  for (int slice = work.begin; slice < work.end; ++slice) {
    float scale[2] = {};
    if constexpr (C::kBlocks) scale[0] = block_scale[0][slice], scale[1] = block_scale[1][slice];
    ptx::mbarrier_wait(ring.full + stage, phase);
    const uint32_t base = ptx::smem_address(ring.stages + stage * C::kStageBytes);
    const uint32_t values = base + group * kGroupRows * C::kRowBytes;
    uint32_t a[C::kSteps][4];
    if constexpr (C::kConverts) {
      load_weights<C>(values + warp * 16 * C::kRowBytes,
                      base + C::kScalesAt + (group * kGroupRows + warp * 16) * C::kScaleRow, lane, a);
    }
    if constexpr (C::kBlocks) {
      float part[C::kTokens / 2];
      ptx::wgmma_fence();
      issue<C>(part, a, values, base + C::kXAt);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < C::kTokens / 2; ++i) sums[i] += scale[i >> 1 & 1] * part[i];
    } else {
      ptx::wgmma_fence();
      issue<C>(sums, a, values, base + C::kXAt);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
    if (lane == 0) ptx::mbarrier_arrive(ring.empty + stage);
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
}

// The tokens' factors, by the three warps beside the one that asks for copies.
template <class C>
__device__ void make_factors(const Wide& w, const Work& work, float* factor) {
  const LinearParams& p = w.p;
  const int first = work.token_tile * C::kTokens;
  ptx::wait_for_previous_kernel();
  for (int m = static_cast<int>(threadIdx.x) - kConsumers - 32; m < min(C::kTokens, p.tokens - first); m += kHelpers) {
    float total = 0;
#pragma unroll 8
    for (int i = 0; i < p.num_squares; ++i) total += __ldcg(p.squares + int64_t{i} * p.squares_stride + first + m);
    factor[m] = (C::kConverts ? kHalfFactor * Form<C::kForm>::kFactor : 1.0f) * (p.squares != nullptr ? norm_factor(p, total) : 1.0f);
  }
  ptx::named_barrier_arrive(kRingRead, kConsumers + kHelpers);
}

template <class C>
__device__ __forceinline__ void consume(const Wide& w, const Work& work, const Ring& ring) {
  ptx::wait_for_previous_kernel();
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float sums[C::kTokens / 2];
#pragma unroll
  for (float& v : sums) v = 0;
  multiply<C>(w, work, ring, group, sums);
  const LaneRows rows(w.p, half_tile(w.p, work.row_tile, lane / 16), lane);
  const Finish finish(w, work, C::kTokens, ptx::smem_address(ring.stages), ring.factor);
  Finish::Residual residual;
  if (w.p.out_kind == LinearOut::kResidual) {
    finish.load_norm(rows, residual), finish.load_before(rows, finish.begin, residual);
  }
  ptx::named_barrier(kRingRead, kConsumers + kHelpers);
  auto* join = reinterpret_cast<float*>(ring.stages) + group * kGroupRows + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < C::kTokens / 2; ++i) {
    join[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kJoinStride + (i >> 1 & 1) * 8] = sums[i];
  }
  if (w.splits == 1) {
    ptx::named_barrier(kJoinWritten, kConsumers);
  } else {
    cluster_barrier();
  }
  if (w.p.out_kind == LinearOut::kGated) {
    finish.gate(rows);
  } else if (w.p.out_kind == LinearOut::kResidual) {
    finish.add(rows, residual);
  } else {
    finish.store(rows);
  }
  if (w.splits > 1) cluster_barrier();  // the others have read this CTA's sums
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kCtasPerSm) wide_kernel(const __grid_constant__ Wide w) {
  extern __shared__ __align__(1024) char shared[];
  auto* full = reinterpret_cast<uint64_t*>(shared + C::kRingBytes);
  const Ring ring{shared, full, full + kMaxStages, reinterpret_cast<float*>(full + 2 * kMaxStages)};
  ptx::let_next_kernel_start();
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(ring.full + i, 1);
      ptx::mbarrier_init(ring.empty + i, kConsumers / 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const Work work = Work::of<C>(w);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_down<C::kProducerRegisters>();
    if (threadIdx.x == kConsumers) produce<C>(w, work, ring);
    if (threadIdx.x >= kThreads - kHelpers) make_factors<C>(w, work, ring.factor);
    __syncwarp();
    if (w.splits > 1) cluster_barrier(), cluster_barrier();  // as the consumers
  } else {
    ptx::registers_up<C::kConsumerRegisters>();
    consume<C>(w, work, ring);
  }
}

// ---- Launch ------------------------------------------------------------------------------------------------------

int row_tiles(const LinearParams& p) {
  if (p.out_kind == LinearOut::kGated) return (p.matrix[0].rows + kGroupRows - 1) / kGroupRows;
  int halves = 0;
  for (int i = 0; i < p.num_matrices; ++i) halves += (p.matrix[i].rows + kGroupRows - 1) / kGroupRows;
  return (halves + 1) / 2;
}

// Clusters of `splits` CTAs that the GPU holds at a time: fewer than its places, as a cluster stays within a part of
// the GPU.
template <class C>
int resident_clusters(int splits, int num_sms) {
  static const std::array<int, kMaxSplits + 1> resident = [&] {
    std::array<int, kMaxSplits + 1> count{};
    count[1] = num_sms * C::kCtasPerSm;
    for (int s = 2; s <= kMaxSplits; ++s) {
      cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
      cluster.val.clusterDim.x = static_cast<unsigned>(s), cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
      cudaLaunchConfig_t config{
          .gridDim = dim3(static_cast<unsigned>(s)), .blockDim = dim3(kThreads), .dynamicSmemBytes = C::kSharedBytes};
      config.attrs = &cluster, config.numAttrs = 1;
      if (cudaOccupancyMaxActiveClusters(&count[s], wide_kernel<C>, &config) != cudaSuccess) count[s] = 0;
    }
    return count;
  }();
  return resident[splits];
}

// How many CTAs share a tile: the least time in slices, where a CTA's start and end cost as much as some slices
// (measured).
template <class C>
int choose_splits(int tiles, int cols, int num_sms) {
  const int slices = (cols + C::kSlice - 1) / C::kSlice;
  constexpr int kEnds = 4, kJoin = 2;
  int best = 1, least = 0;
  for (int splits = 1; splits <= std::min(kMaxSplits, slices); ++splits) {
    const int resident = resident_clusters<C>(splits, num_sms);
    if (resident == 0) continue;
    const int waves = (tiles + resident - 1) / resident;
    const int time = waves * ((slices + splits - 1) / splits + kEnds + (splits > 1 ? kJoin : 0));
    if (splits == 1 || time < least) best = splits, least = time;
  }
  return best;
}

template <class C>
cudaError_t launch(const LinearParams& p, int num_sms, cudaStream_t stream) {
  Wide w{.p = p, .token_tiles = (p.tokens + C::kTokens - 1) / C::kTokens};
  cudaError_t error = make_tensor_map(&w.x, p.x, int64_t{p.matrix[0].cols} * 2, p.tokens, 128, C::kTokens);
  for (int i = 0; i < p.num_matrices && error == cudaSuccess; ++i) {
    const Matrix& m = p.matrix[i];
    error =
        make_tensor_map(w.values + i, m.values, value_row_bytes(C::kForm, m.cols), m.rows, C::kRowBytes, kGroupRows);
    if (error != cudaSuccess || C::kScaleRow == 0) continue;
    error =
        make_tensor_map(w.scales + i, m.scales, scale_row_bytes(C::kForm, m.cols), m.rows, C::kScaleRow, kGroupRows);
  }
  if (error != cudaSuccess) return error;
  const int tiles = row_tiles(p) * w.token_tiles;
  w.splits = choose_splits<C>(tiles, p.matrix[0].cols, num_sms);
  return launch_clustered(w.splits, wide_kernel<C>, tiles * w.splits, kThreads, C::kSharedBytes, stream, w);
}

// Calls fn.operator()<Config>() for each form, or the one that serves p.
template <typename Fn>
cudaError_t dispatch(const LinearParams& p, const Fn& fn) {
  // Tiles of 256 tokens take 0.85 of the time of two of 128, if they are full.
  const int tiles = (p.tokens + 127) / 128;
  const auto by_tokens = [&]<WeightForm F, bool BLOCKS>() {
    if (p.tokens <= 32) return fn.template operator()<Config<F, 32, BLOCKS>>();
    if (p.tokens <= 64) return fn.template operator()<Config<F, 64, BLOCKS>>();
    if constexpr (!BLOCKS) {  // their second set of sums does not fit the registers
      if (tiles > 1 && (tiles + 1) / 2 * 17 < tiles * 10) return fn.template operator()<Config<F, 256, false>>();
    }
    return fn.template operator()<Config<F, 128, BLOCKS>>();
  };
  switch (p.matrix[0].form) {
    case WeightForm::kF16: return by_tokens.template operator()<WeightForm::kF16, false>();
    case WeightForm::kInt4: return by_tokens.template operator()<WeightForm::kInt4, false>();
    case WeightForm::kNvfp4: return by_tokens.template operator()<WeightForm::kNvfp4, false>();
    case WeightForm::kInt8: return by_tokens.template operator()<WeightForm::kInt8, false>();
    case WeightForm::kFp8:
      if (p.matrix[0].block_scale != nullptr) return by_tokens.template operator()<WeightForm::kFp8, true>();
      return by_tokens.template operator()<WeightForm::kFp8, false>();
    default: return by_tokens.template operator()<WeightForm::kBf16, false>();
  }
}

}  // namespace

cudaError_t prepare_linear_wide() {
  if (const cudaError_t error = prepare_tensor_maps(); error != cudaSuccess) return error;
  const float scale = 0;
  for (WeightForm form :
       {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kNvfp4, WeightForm::kInt8}) {
    for (int tokens : {32, 64, 128, 256}) {
      for (const float* blocks : {static_cast<const float*>(nullptr), &scale}) {
        LinearParams p;
        p.matrix[0].form = form, p.matrix[0].block_scale = blocks, p.tokens = tokens;
        const cudaError_t error = dispatch(p, [&]<class C>() {
          return cudaFuncSetAttribute(wide_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
        });
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

int linear_wide_parts(const LinearParams& params) { return row_tiles(params); }

cudaError_t run_linear_wide(const LinearParams& params, int num_sms, cudaStream_t stream) {
  return dispatch(params, [&]<class C>() { return launch<C>(params, num_sms, stream); });
}

}  // namespace tailrace::cuda
