// Experts of many tokens on Hopper: grouped products on wgmma, weights turned from their stored form into operands in
// registers.
//
// Mapping. A CTA takes 128 rows of one expert (gated: 64 of gate and 64 of up) times a tile of its tokens. One thread
// fills a ring of shared memory, a unit of 64 columns a stage: two bulk copies of weights (a unit is contiguous) and a
// box of x, whose rows were gathered by entry. Two warp groups of 64 rows each read their units as operand A
// (expert_form.h), tokens are the N columns; the next unit becomes operands while this one's products run. Two CTAs
// share an SM (no warp is spared for copying: a scheduler's registers would hold five of 96), so one finishes while the
// other multiplies. The token tiles of some rows follow each other, so that weights are read from memory once. Bound: 2
// * rows * cols * entries FLOP over the bf16 rate; conversion takes about half of the products' time.
#include <algorithm>

#include "kernels/cuda/expert_units.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"

namespace tailrace::cuda {
namespace {

constexpr int kThreads = 256, kTileRows = 2 * kUnitRows;
constexpr int kJoinStride = kTileRows + 4;  // floats; fragments are written without bank conflicts
constexpr int kRoom = 112 * 1024, kMaxStages = 8;

template <ExpertForm F, int N>
struct Config {
  static constexpr int kXBytes = N * 128;
  static constexpr int kStageBytes = (kXBytes + 2 * expert_unit_bytes(F) + 1023) / 1024 * 1024;
  static constexpr int kStages = std::min(kMaxStages, (kRoom - 2 * kMaxStages * 8) / kStageBytes);
  static constexpr int kRingBytes = std::max(kStages * kStageBytes, N* kJoinStride * 4);
  static constexpr int kSharedBytes = kRingBytes + 2 * kMaxStages * 8;
  static_assert(kStages >= 3 && kSharedBytes <= kRoom);
};

// Of the warp group's half of the rows; those beyond the matrix are the last ones again and are not written.
struct Half {
  int matrix, row_tile;
  bool real;
  __device__ Half(const ExpertParams& p, int row_tile, int group) {
    const int tiles = (p.rows + kUnitRows - 1) / kUnitRows;
    matrix = p.gated ? group : 0;
    const int wanted = p.gated ? row_tile : row_tile * 2 + group;
    real = wanted < tiles, this->row_tile = min(wanted, tiles - 1);
  }
  template <ExpertForm F>
  __device__ const char* units(const ExpertParams& p, int expert) const {
    const ExpertMatrix& m = p.matrix[matrix];
    return static_cast<const char*>(m.values) + expert * m.stride +
           row_tile * expert_units(p.cols) * expert_unit_bytes(F);
  }
};

// The CTA's units of weights and x, in a ring of shared memory that its first thread fills.
template <ExpertForm F, int N>
struct Ring {
  using C = Config<F, N>;
  static constexpr int kUnit = expert_unit_bytes(F);
  char* stages;
  uint64_t *full, *empty;
  const CUtensorMap* x;
  const char* from[2];
  int first_entry, units;

  __device__ __forceinline__ void ask(int unit) const {
    const int stage = unit % C::kStages;
    ptx::mbarrier_expect(full + stage, C::kXBytes + 2 * kUnit);
    char* to = stages + stage * C::kStageBytes;
    ptx::bulk_copy(to + C::kXBytes, from[0] + int64_t{unit} * kUnit, kUnit, full + stage);
    ptx::bulk_copy(to + C::kXBytes + kUnit, from[1] + int64_t{unit} * kUnit, kUnit, full + stage);
    copy_box(ptx::smem_address(to), x, unit * kUnitCols * 2, first_entry, full + stage);
  }
  // The calling thread has seen the end of `unit`: its place is filled again once the others have, too.
  __device__ __forceinline__ void refill(int unit) const {
    if (unit < 0 || unit + C::kStages >= units) return;
    ptx::mbarrier_wait(empty + unit % C::kStages, unit / C::kStages & 1);
    ask(unit + C::kStages);
  }
  __device__ __forceinline__ uint32_t stage_of(int unit) const {
    return ptx::smem_address(stages + unit % C::kStages * C::kStageBytes);
  }
  // Waits for the unit; its weights as operands of four steps.
  __device__ __forceinline__ void operands(int unit, int group, uint32_t (&a)[4][4]) const {
    ptx::mbarrier_wait(full + unit % C::kStages, unit / C::kStages & 1);
    const uint32_t weights = stage_of(unit) + C::kXBytes + group * kUnit;
    UnitPart<F> part;
    part.load(
        threadIdx.x / 32 % 4, threadIdx.x % 32, [&](int byte) { return ptx::load_shared_16(weights + byte); },
        [&](int byte) { return ptx::load_shared_4(weights + byte); });
#pragma unroll
    for (int s = 0; s < 4; ++s) part.step(s, a[s]);
  }
};

// The products of `unit`, added to sums or in their place; meanwhile the next one's operands are made.
template <ExpertForm F, int N>
__device__ __forceinline__ void multiply(const Ring<F, N>& ring, int unit, int group, const uint32_t (&a)[4][4],
                                         uint32_t (&next)[4][4], float (&sums)[N / 2], bool adds = true) {
  ptx::wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4; ++s) ptx::wgmma_rs<0>(sums, a[s], ptx::descriptor(ring.stage_of(unit) + s * 32), s > 0 || adds);
  ptx::wgmma_commit();
  if (unit + 1 < ring.units) ring.operands(unit + 1, group, next);
  ptx::wgmma_wait<0>();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty + unit % Config<F, N>::kStages);
  if (threadIdx.x == 0) ring.refill(unit - 1);
  __syncwarp();
}

// All units' products of the warp group's rows. kFp8Block: two units' sums, times the scale of their 128 columns.
template <ExpertForm F, int N>
__device__ __forceinline__ void multiply_all(const ExpertParams& p, const Ring<F, N>& ring, const Half& half, int expert,
                                             int group, float (&sums)[N / 2]) {
  constexpr bool kBlocks = F == ExpertForm::kFp8Block;
  static_assert(kScaleBlockCols == 2 * kUnitCols && kScaleBlockCols % kUnitRows == 0);
  const float* scales = kBlocks ? block_scales(p, half.matrix, expert, half.row_tile * kUnitRows) : nullptr;
#pragma unroll
  for (float& v : sums) v = 0;
  uint32_t even[4][4], odd[4][4];
  ring.operands(0, group, even);
  for (int unit = 0; unit < ring.units; unit += 2) {
    if constexpr (kBlocks) {
      const float scale = scales[unit / 2];
      float block[N / 2];
#pragma unroll
      for (float& v : block) v = 0;
      multiply(ring, unit, group, even, odd, block, false);
      if (unit + 1 < ring.units) multiply(ring, unit + 1, group, odd, even, block);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[i] += scale * block[i];
    } else {
      multiply(ring, unit, group, even, odd, sums);
      if (unit + 1 < ring.units) multiply(ring, unit + 1, group, odd, even, sums);
    }
  }
}

// A lane's four rows: their biases, and which are there.
struct LaneRows {
  int row, count;
  float bias[4] = {}, scale[4] = {};
  __device__ LaneRows(const ExpertParams& p, const Half& half, int expert, int lane)
      : row(half.row_tile * kUnitRows + lane % 16 * 4) {
    count = half.real ? min(4, p.rows - row) : 0;
    const ExpertMatrix& m = p.matrix[half.matrix];
    const int64_t at = int64_t{expert} * p.rows + row;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (m.bias != nullptr && i < count) bias[i] = m.bias[at + i];
      if (i < count) scale[i] = row_scale(p.form, m, at + i);
    }
  }
};

// A warp takes every eighth token, a lane four rows of it: lanes 0-15 of the first warp group's rows, the others of the
// second's.
template <int N>
__device__ __forceinline__ void finish(const ExpertParams& p, const ExpertTile& tile, int row_tile, const float* join) {
  const int lane = threadIdx.x % 32;
  const LaneRows rows(p, Half(p, row_tile, lane / 16), tile.expert, lane);
  const bool whole = rows.count == 4 && p.rows % 4 == 0;
#pragma unroll 2
  for (int m = threadIdx.x / 32; m < tile.count; m += kThreads / 32) {
    const int entry = tile.first + m;
    const float factor = entry_factor(p, entry);
    const float4 sum = *reinterpret_cast<const float4*>(join + m * kJoinStride + lane * 4);
    float y[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = y[i] * factor * rows.scale[i] + rows.bias[i];
    const int64_t at = int64_t{entry} * p.rows + rows.row;
    if (p.gated) {
      float up[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) up[i] = __shfl_down_sync(~0u, y[i], 16);
      if (lane >= 16) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = gated(p, y[i], up[i]);
      if (whole) {
        *reinterpret_cast<uint2*>(p.gated_out + at) = {ptx::pack_bf16(y[0], y[1]), ptx::pack_bf16(y[2], y[3])};
      } else {
        for (int i = 0; i < rows.count; ++i) p.gated_out[at + i] = __float2bfloat16(y[i]);
      }
    } else if (whole) {
      *reinterpret_cast<float4*>(p.out + at) = {y[0], y[1], y[2], y[3]};
    } else {
      for (int i = 0; i < rows.count; ++i) p.out[at + i] = y[i];
    }
  }
}

template <ExpertForm F, int N>
__global__ void __launch_bounds__(kThreads, 2)
    many_kernel(const __grid_constant__ ExpertParams p, const __grid_constant__ CUtensorMap x) {
  using C = Config<F, N>;
  extern __shared__ __align__(1024) char shared[];
  auto* full = reinterpret_cast<uint64_t*>(shared + C::kRingBytes);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();  // not before: what follows reads the routing at once
  const int num_tiles = __ldcg(p.num_tiles), index = blockIdx.x;
  const int row_tiles = (p.rows + kUnitRows - 1) / kUnitRows, my_rows = p.gated ? row_tiles : (row_tiles + 1) / 2;
  if (index >= num_tiles * my_rows) return;
  const int row_tile = index / num_tiles;
  const ExpertTile tile = load_tile(p, index % num_tiles);
  const Ring<F, N> ring{
      shared,
      full,
      full + kMaxStages,
      &x,
      {Half(p, row_tile, 0).template units<F>(p, tile.expert), Half(p, row_tile, 1).template units<F>(p, tile.expert)},
      tile.first,
      static_cast<int>(expert_units(p.cols))};
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(ring.full + i, 1);
      ptx::mbarrier_init(ring.empty + i, kThreads / 32);
    }
    ptx::mbarrier_init_fence();
    for (int i = 0; i < min(C::kStages, ring.units); ++i) ring.ask(i);
  }
  __syncthreads();
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float sums[N / 2];
  multiply_all(p, ring, Half(p, row_tile, group), tile.expert, group, sums);
  __syncthreads();  // the ring is read
  auto* join = reinterpret_cast<float*>(shared);
  float* mine = join + group * kUnitRows + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) mine[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kJoinStride + (i >> 1 & 1) * 8] = sums[i];
  __syncthreads();
  finish<N>(p, tile, row_tile, join);
}

struct Kernel {
  void (*kernel)(ExpertParams, CUtensorMap);
  int tokens, shared_bytes;
};

template <ExpertForm F>
Kernel kernel_of(int tokens) {
  if (tokens <= 64) return {many_kernel<F, 64>, 64, Config<F, 64>::kSharedBytes};
  constexpr int kMost = F == ExpertForm::kFp8Block ? 64 : 128;
  return {many_kernel<F, kMost>, kMost, Config<F, kMost>::kSharedBytes};
}
Kernel kernel_of(ExpertForm form, int tokens) {
  switch (form) {
    case ExpertForm::kMxfp4: return kernel_of<ExpertForm::kMxfp4>(tokens);
    case ExpertForm::kNvfp4: return kernel_of<ExpertForm::kNvfp4>(tokens);
    case ExpertForm::kFp8: return kernel_of<ExpertForm::kFp8>(tokens);
    case ExpertForm::kFp8Block: return kernel_of<ExpertForm::kFp8Block>(tokens);
    case ExpertForm::kBf16: break;
  }
  return kernel_of<ExpertForm::kBf16>(tokens);
}

}  // namespace

cudaError_t prepare_experts_many() {
  if (const cudaError_t error = prepare_tensor_maps(); error != cudaSuccess) return error;
  for (int form = 0; form < kNumExpertForms; ++form) {
    for (const int tokens : {64, 128}) {
      const Kernel k = kernel_of(static_cast<ExpertForm>(form), tokens);
      const cudaError_t error =
          cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t run_experts_many(const ExpertParams& p, cudaStream_t stream) {
  const int row_tiles = (p.rows + kUnitRows - 1) / kUnitRows, my_rows = p.gated ? row_tiles : (row_tiles + 1) / 2;
  const Kernel k = kernel_of(p.form, p.tile_tokens);
  if (k.tokens != p.tile_tokens) return cudaErrorInvalidValue;
  CUtensorMap x;
  const cudaError_t error = make_tensor_map(&x, p.x, int64_t{p.cols} * 2, p.most_entries, 128, k.tokens);
  if (error != cudaSuccess) return error;
  const auto grid = static_cast<unsigned>(p.most_tiles * my_rows);
  return launch_overlapped(k.kernel, grid, kThreads, static_cast<size_t>(k.shared_bytes), stream, p, x);
}

}  // namespace tailrace::cuda
