// Experts of few tokens: weights stream from memory to registers past tensor cores.
//
// Mapping. A CTA takes 32 rows (gated: 32 of gate and 32 of up) of one expert times a tile of its tokens, tile after
// tile; the token tiles of 32 rows follow each other, so that an expert with several is read from memory once. A warp
// takes 16 rows of a matrix and every second (gated) or fourth unit of columns; a lane loads its operands with one
// 16-byte load (4 bits a value; 512 contiguous bytes a warp), four units ahead, and multiplies (m16n8k16: weights are the 16,
// tokens the 8). x comes through shared memory, half a kilobyte or one of columns at a time, in two buffers. The warps'
// sums meet in shared memory at the end. Launch. The routing is read from device memory; products by `down` ask for
// their first weights before the kernel before ends. Bound: bytes of the chosen experts' weights / HBM bandwidth; MXFP4
// takes about 17 instructions for eight values, half of what the SMs issue in that time.
#include <algorithm>

#include "kernels/cuda/expert_units.cuh"
#include "kernels/cuda/launch.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kTileRows = 32, kAhead = 4;

template <ExpertForm F, int N, bool GATED>
struct Config {
  static constexpr int kMatrices = GATED ? 2 : 1;
  static constexpr int kShares = kWarps / (2 * kMatrices);  // warps that share a row's columns
  static constexpr int kStep = kShares * kAhead;  // units from one of a warp's to its successor in the same place
  static constexpr int kChunkUnits = kStep * (N == 8 ? 2 : 1), kChunkCols = kChunkUnits * kUnitCols;
  static constexpr int kPieces = kChunkCols / 8, kCopyRows = kThreads / kPieces,
                       kCopies = N / kCopyRows;    // of 16 bytes
  static constexpr int kXStride = kChunkCols + 8;  // ldmatrix without bank conflicts
  static constexpr int kXBytes = N * kXStride * 2, kJoinStride = N + 1;
  static constexpr int kSharedBytes = 2 * kXBytes + (kWarps * 16 * kJoinStride + N) * 4;  // chunks, sums, factors
  static constexpr int kCtasPerSm = F == ExpertForm::kMxfp4 || F == ExpertForm::kNvfp4 ? 3 : 2;
};

struct Item {
  int row_tile;
  ExpertTile tile;
};

template <class C, ExpertForm F, int N, bool GATED>
struct Worker {
  static constexpr int kUnit = expert_unit_bytes(F);
  static constexpr bool kBlocks = F == ExpertForm::kFp8Block;
  static_assert(C::kShares % 2 == 0 && kScaleBlockCols == 2 * kUnitCols && kScaleBlockCols % kTileRows == 0);
  const ExpertParams& p;
  const int warp, lane, matrix, share, units;
  UnitPart<F> ahead[kAhead];
  const char* next;          // the expert's unit that is asked for next into the first place
  const float* next_scale;   // kBlocks: of that unit
  float unit_scale[kBlocks ? kAhead : 1];
  int group;                 // of 16 rows in a unit
  int x_row[C::kCopies];     // this thread's rows of x; -1: none
  float bias[C::kMatrices], scale[C::kMatrices];  // of the row that this thread finishes
  uint32_t x_at;             // this lane's place in a chunk of x

  __device__ Worker(const ExpertParams& p)
      : p(p),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        matrix(warp / 2 % C::kMatrices),
        share(warp / (2 * C::kMatrices)),
        units(static_cast<int>(expert_units(p.cols))),
        x_at((lane % 8 * C::kXStride + lane / 8 * 8 + share * kUnitCols) * 2) {}

  __device__ __forceinline__ Item item_of(int index, int num_tiles) const {
    return {index / num_tiles, load_tile(p, index % num_tiles)};
  }
  __device__ __forceinline__ void load(int slot) {
    const char* at = next + slot * C::kShares * kUnit;
    ahead[slot].load(
        group, lane, [&](int byte) { return __ldcs(reinterpret_cast<const uint4*>(at + byte)); },
        [&](int byte) { return *reinterpret_cast<const uint32_t*>(at + byte); });
    if constexpr (kBlocks) unit_scale[slot] = next_scale[slot * C::kShares / 2];
  }
  __device__ __forceinline__ void advance() {
    next += C::kStep * kUnit;
    if constexpr (kBlocks) next_scale += C::kStep / 2;
  }
  __device__ __forceinline__ void start(const Item& item) {
    group = item.row_tile % 2 * 2 + warp % 2;
    next = static_cast<const char*>(p.matrix[matrix].values) + item.tile.expert * p.matrix[matrix].stride +
           (int64_t{item.row_tile / 2} * units + share) * kUnit;
    if constexpr (kBlocks) next_scale = block_scales(p, matrix, item.tile.expert, item.row_tile * kTileRows) + share / 2;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (j * C::kShares + share < units) load(j);
    }
    advance();
  }
  // What the item's copies of x and its finished sums need, asked for while its first weights come.
  __device__ __forceinline__ void ask_ends(const Item& item, float* factor) {
#pragma unroll
    for (int j = 0; j < C::kCopies; ++j) {
      const int m = j * C::kCopyRows + static_cast<int>(threadIdx.x) / C::kPieces, entry = item.tile.first + m;
      x_row[j] = m >= item.tile.count ? -1 : p.token != nullptr ? __ldcg(p.token + entry) : entry;
    }
    const int row = item.row_tile * kTileRows + static_cast<int>(threadIdx.x) % kTileRows;
#pragma unroll
    for (int i = 0; i < C::kMatrices; ++i) {
      const int64_t at = int64_t{item.tile.expert} * p.rows + row;
      bias[i] = p.matrix[i].bias != nullptr && row < p.rows ? p.matrix[i].bias[at] : 0.0f;
      scale[i] = row < p.rows ? row_scale(F, p.matrix[i], at) : 0.0f;
    }
    const int m = threadIdx.x;
    if (m < item.tile.count) factor[m] = entry_factor(p, item.tile.first + m);
  }
  // Columns of a chunk of the tile's tokens; zeros beyond the row's end, nothing for tokens that are not there.
  __device__ __forceinline__ void load_x(int chunk, char* to) const {
    const int piece = static_cast<int>(threadIdx.x) % C::kPieces, col = chunk * C::kChunkCols + piece * 8;
    const bool real = col < p.cols;
    to += (static_cast<int>(threadIdx.x) / C::kPieces * C::kXStride + piece * 8) * 2;
#pragma unroll
    for (int j = 0; j < C::kCopies; ++j) {
      if (x_row[j] < 0) break;
      ptx::copy_16(to + j * C::kCopyRows * C::kXStride * 2, p.x + (real ? int64_t{x_row[j]} * p.cols + col : 0), real);
    }
  }
  __device__ __forceinline__ void multiply(int slot, uint32_t x, float (&sums)[N / 8][2][4]) const {
    if constexpr (!kBlocks) return add(slot, x, sums);
    float unit_sums[N / 8][2][4] = {};
    add(slot, x, unit_sums);
#pragma unroll
    for (int t = 0; t < N / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[t][0][e] += unit_scale[slot] * (unit_sums[t][0][e] + unit_sums[t][1][e]);
    }
  }
  __device__ __forceinline__ void add(int slot, uint32_t x, float (&sums)[N / 8][2][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[2][4];
      ahead[slot].step(half * 2, a[0]);
      ahead[slot].step(half * 2 + 1, a[1]);
#pragma unroll
      for (int t = 0; t < N / 8; ++t) {
        uint32_t b[4];  // of both steps
        ptx::ldmatrix_x4(b, x + (t * 8 * C::kXStride + half * 32) * 2);
        ptx::mma_bf16(sums[t][0], a[0], b[0], b[1]);
        ptx::mma_bf16(sums[t][1], a[1], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void finish(const Item& item, const float* join, const float* factor) const {
    const int r = static_cast<int>(threadIdx.x) % kTileRows, row = item.row_tile * kTileRows + r;
    if (row >= p.rows) return;
    for (int m = static_cast<int>(threadIdx.x) / kTileRows; m < item.tile.count; m += kThreads / kTileRows) {
      float y[C::kMatrices];
#pragma unroll
      for (int i = 0; i < C::kMatrices; ++i) {
        y[i] = 0;
#pragma unroll
        for (int s = 0; s < C::kShares; ++s) y[i] += join[((s * C::kMatrices + i) * 32 + r) * C::kJoinStride + m];
        y[i] = y[i] * factor[m] * scale[i] + bias[i];
      }
      const int64_t at = int64_t{item.tile.first + m} * p.rows + row;
      if constexpr (GATED) {
        p.gated_out[at] = __float2bfloat16(gated(p, y[0], y[1]));
      } else {
        p.out[at] = y[0];
      }
    }
  }
};

template <ExpertForm F, int N, bool GATED>
__global__ void __launch_bounds__(kThreads, Config<F, N, GATED>::kCtasPerSm)
    few_kernel(const __grid_constant__ ExpertParams p) {
  using C = Config<F, N, GATED>;
  extern __shared__ __align__(128) char shared[];
  auto* join = reinterpret_cast<float*>(shared + 2 * C::kXBytes);
  float* factor = join + kWarps * 16 * C::kJoinStride;
  Worker<C, F, N, GATED> worker(p);
  if (GATED) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();  // not before: what follows reads the routing at once
  }
  const int num_tiles = __ldcg(p.num_tiles), row_tiles = (p.rows + kTileRows - 1) / kTileRows,
            items = num_tiles * row_tiles;
  const int chunks = (worker.units + C::kChunkUnits - 1) / C::kChunkUnits;
  int index = blockIdx.x;
  Item item{};
  if (index < items) item = worker.item_of(index, num_tiles), worker.start(item);
  if (!GATED) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }
  while (index < items) {
    float sums[N / 8][2][4] = {};
    worker.ask_ends(item, factor);
    worker.load_x(0, shared);
    ptx::copy_commit();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks) worker.load_x(chunk + 1, shared + (chunk + 1) % 2 * C::kXBytes);
      ptx::copy_commit();
      ptx::copy_wait_but<1>();
      __syncthreads();
      uint32_t x = ptx::smem_address(shared + chunk % 2 * C::kXBytes) + worker.x_at;
      int unit = chunk * C::kChunkUnits + worker.share;
#pragma unroll 1
      for (int step = 0; step < C::kChunkUnits / C::kStep; ++step) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (unit + j * C::kShares >= worker.units) continue;
          worker.multiply(j, x + j * C::kShares * kUnitCols * 2, sums);
          if (unit + j * C::kShares + C::kStep < worker.units) worker.load(j);
        }
        unit += C::kStep, x += C::kStep * kUnitCols * 2, worker.advance();
      }
      __syncthreads();  // the buffer is free
    }
    const Item done = item;
    index += gridDim.x;
    if (index < items) item = worker.item_of(index, num_tiles), worker.start(item);
#pragma unroll
    for (int t = 0; t < N / 8; ++t) {
      float* at = join + (worker.warp * 16 + worker.lane / 4) * C::kJoinStride + t * 8 + worker.lane % 4 * 2;
#pragma unroll
      for (int e = 0; e < 4; ++e) at[e / 2 * 8 * C::kJoinStride + e % 2] = sums[t][0][e] + sums[t][1][e];
    }
    __syncthreads();
    worker.finish(done, join, factor);
    __syncthreads();  // factors are read
  }
}

struct Kernel {
  void (*kernel)(ExpertParams);
  int shared_bytes;
};

template <ExpertForm F, int N>
Kernel kernel_of(bool gated) {
  if (gated) return {few_kernel<F, N, true>, Config<F, N, true>::kSharedBytes};
  return {few_kernel<F, N, false>, Config<F, N, false>::kSharedBytes};
}
template <ExpertForm F>
Kernel kernel_of(int tile_tokens, bool gated) {
  return tile_tokens <= 8 ? kernel_of<F, 8>(gated) : kernel_of<F, 16>(gated);
}
Kernel kernel_of(const ExpertParams& p) {
  switch (p.form) {
    case ExpertForm::kMxfp4: return kernel_of<ExpertForm::kMxfp4>(p.tile_tokens, p.gated);
    case ExpertForm::kNvfp4: return kernel_of<ExpertForm::kNvfp4>(p.tile_tokens, p.gated);
    case ExpertForm::kFp8: return kernel_of<ExpertForm::kFp8>(p.tile_tokens, p.gated);
    case ExpertForm::kFp8Block: return kernel_of<ExpertForm::kFp8Block>(p.tile_tokens, p.gated);
    case ExpertForm::kBf16: break;
  }
  return kernel_of<ExpertForm::kBf16>(p.tile_tokens, p.gated);
}

int places[kNumExpertForms][2][2];  // CTAs that the GPU holds at once: [form][16 tokens][gated]
int& places_of(const ExpertParams& p) { return places[static_cast<int>(p.form)][p.tile_tokens > 8][p.gated]; }

}  // namespace

cudaError_t prepare_experts_few(int num_sms) {
  for (int form = 0; form < kNumExpertForms; ++form) {
    for (const int tokens : {8, 16}) {
      for (const bool gated : {false, true}) {
        ExpertParams p;
        p.form = static_cast<ExpertForm>(form), p.tile_tokens = tokens, p.gated = gated;
        const Kernel k = kernel_of(p);
        cudaError_t error = cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
        int per_sm = 0;
        if (error == cudaSuccess) {
          error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, k.kernel, kThreads,
                                                                static_cast<size_t>(k.shared_bytes));
        }
        if (error != cudaSuccess) return error;
        places_of(p) = std::max(1, per_sm) * num_sms;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t run_experts_few(const ExpertParams& p, cudaStream_t stream) {
  const Kernel k = kernel_of(p);
  const int64_t items = int64_t{p.most_tiles} * ((p.rows + kTileRows - 1) / kTileRows);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(items, places_of(p)));
  return launch_overlapped(k.kernel, grid, kThreads, static_cast<size_t>(k.shared_bytes), stream, p);
}

}  // namespace tailrace::cuda
