// Projections of few tokens: a stream of weights through shared memory past tensor cores.
//
// Mapping. A tile is 16 or 32 output rows (gated: 8 of gate and 8 of up in each 16) over all columns; a CTA takes every grid-th
// tile, and two CTAs share an SM, so that one streams while the other finishes a tile. Its warps (eight; four where shared memory
// is small) share out the columns; each keeps its own ring of slices (16 rows x 128 bytes and the tokens' x), filled by 16-byte
// asynchronous copies, and multiplies them (m16n8k16: weights are the 16, tokens the 8) without waiting for another warp;
// their sums meet in shared memory at a tile's end. Which column sits in which slot of a fragment does not matter as long as
// weights and x agree, so a lane reads 8 consecutive values of a row with one load.
// Launch. Weights do not depend on the kernel before: the rings are filled before waiting for it, and the next kernel may
// start (and fill its rings) while this one runs: two CTAs fit an SM where tokens are few.
// Norm. W (x * g * r) = r W (x * g): the token's factor r is applied to the sums, from partial sums of squares that the kernel
// before left; so no kernel exists for a norm between residual and projection.
// Bound: bytes of weights / HBM bandwidth; past 16 tokens x, read again for each 16 rows, outgrows the weights.
#include "kernels/cuda/linear_decode.h"

#include <algorithm>

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_forms.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kGroupRows = 16, kMaxSlots = 8;

// ---- Ring slots --------------------------------------------------------------------------------------------------
// A ring slot holds 128 bytes of each row. A lane's load of 16 of them gives kValues consecutive values; pairs(j) gives eight
// of those, from 8 j on, as pairs for the tensor cores. x is bf16; for f16 a warp rewrites its slice, 1/16 of its size.

template <WeightForm F>
__host__ __device__ constexpr int padded_scales(int cols) {  // copies move 16 bytes
  return (Form<F>::scale_bytes(cols) + 15) / 16 * 16;
}

template <WeightForm F>
struct Piece {
  uint32_t v[4];
  __half2 d, m;
  __device__ __forceinline__ Piece(const uint4& v, uint32_t scales, int piece) : v{v.x, v.y, v.z, v.w} {
    if constexpr (four_bits(F)) {  // one block: of two scales, d and m, or of a scale and a minimum
      const __half2 s = halves_of(ptx::load_shared_4(scales + piece * 4));
      d = __low2half2(s), m = __high2half2(s);
    } else if constexpr (F == WeightForm::kInt8) {  // half a block
      const uint2 s = ptx::load_shared_8(scales + piece / 2 * 8);
      d = piece % 2 == 0 ? __low2half2(halves_of(s.x)) : __high2half2(halves_of(s.x)), m = __low2half2(halves_of(s.y));
    }
  }
  __device__ __forceinline__ void pairs(int j, uint32_t (&w)[4]) const {
    constexpr int kWords = 32 / Form<F>::kValues;  // of eight values
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      Form<F>::word(v[kWords * j + i], F == WeightForm::kNvfp4 && j >= 2 ? m : d, m, w + i * 4 / kWords);
    }
  }
};

constexpr int kRowBytes = 128;  // of a slot
// XOR of the 16-byte pieces of a slot's row: the lanes of a load hit different banks.
__device__ __forceinline__ int weight_swizzle(int row) { return 4 * (row & 1); }
template <int kValues>
__device__ __forceinline__ int x_piece(int token, int piece) {
  if constexpr (kValues == 8) return piece ^ 4 * (token & 1);
  if constexpr (kValues == 16) return piece ^ (token & 1);
  return piece ^ (piece >> 3 & 1) ^ 2 * (token & 1);
}

// Warps of a CTA, and the shared memory that it may take where two share an SM and where one has it alone.
struct Room {
  int warps, half, whole;
};
constexpr Room kHopperRoom{8, 112 * 1024, 225 * 1024}, kPortableRoom{4, 48 * 1024, 98 * 1024};  // 8.6, 8.9 and 12.0 have the least
#pragma nv_diag_suppress 177  // each compilation has one room whose Config is only half used
#if __CUDA_ARCH__ == 900
#define TAILRACE_ROOM kHopperRoom
#else
#define TAILRACE_ROOM kPortableRoom
#endif

// T: the most tokens; G: groups of 16 rows in a tile, x is read once for all of them. ROOM: the kernel's is its architecture's.
template <WeightForm F, int T, int G, Room ROOM>
struct Config {
  static constexpr int kWarps = ROOM.warps, kThreads = kWarps * 32;
  static_assert(F != WeightForm::kFp8 || 8 * Form<F>::kValues == kScaleBlock);  // a slice has one block scale
  static constexpr int kMaxTokens = T;
  static constexpr int kTileTokens = (T + 7) / 8, kTokens = kTileTokens * 8;  // of the tensor cores' 8
  static constexpr int kGroups = G;
  static constexpr int kTileRows = kGroups * kGroupRows;
  static constexpr int kSlice = 8 * Form<F>::kValues;  // columns of a slot
  static constexpr int kScaleRow = padded_scales<F>(kSlice), kXRow = kSlice * 2;
  static constexpr int kScalesAt = kTileRows * kRowBytes, kXAt = kScalesAt + kTileRows * kScaleRow;
  static constexpr int kSlotBytes = kXAt + T * kXRow;
  static constexpr int kJoinStride = kTokens + 1;
  static constexpr int kSteps = (kTokens * kTileRows + kThreads - 1) / kThreads;  // outputs of a tile per thread
  // Lanes of tokens that are not there read up to this far behind the last slot; what they read goes nowhere.
  static constexpr int kBehindFloats = (kTokens - T) * kXRow / 4;
  static constexpr int kJoinFloats = std::max(kWarps * kTileRows * kJoinStride, kBehindFloats);
  static constexpr int kFixed = (kJoinFloats + kTokens) * 4;
  // Slots of a ring: half an SM's shared memory, so that another CTA fits beside, unless that leaves too few.
  static constexpr int kHalfRoom = (ROOM.half - kFixed) / (kWarps * kSlotBytes);
  static constexpr int kRoom = kHalfRoom >= 3 ? kHalfRoom : (ROOM.whole - kFixed) / (kWarps * kSlotBytes);
  static constexpr int kSlots = kRoom < kMaxSlots ? kRoom : kMaxSlots;
  static constexpr int kSharedBytes = kSlots * kWarps * kSlotBytes + kFixed;
  static constexpr int kCtasPerSm = kSharedBytes <= ROOM.half ? 2 : 1;
  static_assert(kSlots >= 2);
};

// The matrix row of row r of `tile`; null beyond the end.
struct RowPlace {
  const Matrix* matrix;
  int row;
};
__device__ __forceinline__ RowPlace row_place(const LinearParams& p, int tile_rows, int tile, int r) {
  if (p.out_kind == LinearOut::kGated) {
    const int row = (tile * tile_rows + r) / kGroupRows * 8 + (r & 7);
    return {row < p.matrix[0].rows ? &p.matrix[r >> 3 & 1] : nullptr, row};
  }
  int row = tile * tile_rows + r;
  for (int i = 0; i < p.num_matrices; ++i) {
    if (row < p.matrix[i].rows) return {&p.matrix[i], row};
    row -= p.matrix[i].rows;
  }
  return {nullptr, 0};
}

// A warp's share of the columns, and what its lanes copy into a slot.
template <class C, WeightForm F>
struct Stream {
  static constexpr int kCopies = C::kTileRows * 8 / 32, kScalePieces = C::kScaleRow / 16;
  static constexpr int kScaleCopies = (C::kTileRows * kScalePieces + 31) / 32, kXPieces = C::kXRow / 16;
  const LinearParams& p;
  uint32_t ring;   // of this warp, in shared memory
  int lane, cols;
  int begin;       // first column of the warp: slices are dealt in turn, so that the warps read whole kilobytes of a row together
  int slices;      // of a tile
  const char* from[kCopies];  // this lane's piece of each of its rows, at `begin`; rows beyond the end read the first
  const char* scales_from[kScaleCopies > 0 ? kScaleCopies : 1];

  __device__ Stream(const LinearParams& p, uint32_t ring, int warp, int lane) : p(p), ring(ring), lane(lane), cols(p.matrix[0].cols) {
    begin = warp * C::kSlice;
    slices = begin < cols ? (cols - begin - 1) / (C::kWarps * C::kSlice) + 1 : 0;
  }
  // Columns from the slice's first to the row's end.
  __device__ int left(int slice) const { return cols - begin - slice * (C::kWarps * C::kSlice); }
  __device__ uint32_t slot(int i) const { return ring + i * C::kSlotBytes; }

  __device__ void set_tile(int tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const RowPlace place = row_place(p, C::kTileRows, tile, i * 4 + lane / 8);
      const Matrix& m = place.matrix != nullptr ? *place.matrix : p.matrix[0];
      from[i] = static_cast<const char*>(m.values) + (place.matrix != nullptr ? int64_t{place.row} * Form<F>::value_bytes(cols) : 0) +
                Form<F>::value_bytes(begin) + lane % 8 * 16;
    }
    if constexpr (kScalePieces > 0) {
#pragma unroll
      for (int i = 0; i < kScaleCopies; ++i) {
        const RowPlace place = row_place(p, C::kTileRows, tile, (i * 32 + lane) / kScalePieces);
        const Matrix& m = place.matrix != nullptr ? *place.matrix : p.matrix[0];
        scales_from[i] = static_cast<const char*>(m.scales) + (place.matrix != nullptr ? int64_t{place.row} * padded_scales<F>(cols) : 0) +
                         begin / 32 * Form<F>::scale_bytes(32) + (i * 32 + lane) % kScalePieces * 16;
      }
    }
  }
  __device__ __forceinline__ void load_weights(uint32_t slot, int slice) const {
    const uint32_t to = slot + lane / 8 * kRowBytes + ((lane % 8) ^ weight_swizzle(lane / 8)) * 16;  // rows 4 apart swizzle alike
    const int offset = slice * (C::kWarps * kRowBytes);
    if (left(slice) >= C::kSlice) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) ptx::copy_16_to(to + i * 4 * kRowBytes, from[i] + offset);
    } else {
      const bool real = Form<F>::value_bytes(left(slice)) > lane % 8 * 16;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) ptx::copy_16_to(to + i * 4 * kRowBytes, real ? from[i] + offset : from[i], real);
    }
    if constexpr (kScalePieces > 0) {
#pragma unroll
      for (int i = 0; i < kScaleCopies; ++i) {
        const int at = i * 32 + lane;
        const bool real = padded_scales<F>(left(slice)) > at % kScalePieces * 16;
        if (at < C::kTileRows * kScalePieces) {
          ptx::copy_16_to(slot + C::kScalesAt + at * 16, real ? scales_from[i] + slice * (C::kWarps * C::kScaleRow) : scales_from[i], real);
        }
      }
    }
  }
  __device__ __forceinline__ void load_tokens(uint32_t slot, int slice) const {
    const int k = cols - left(slice), pieces = left(slice) / 8;
#pragma unroll
    for (int i = 0; i < (C::kMaxTokens * kXPieces + 31) / 32; ++i) {
      const int at = i * 32 + lane, m = at / kXPieces, piece = at % kXPieces;
      const bool real = piece < pieces;  // beyond the row's end zeros: a weight of zero times garbage may be no number
      if (m < p.tokens) {
        ptx::copy_16_to(slot + C::kXAt + m * C::kXRow + x_piece<Form<F>::kValues>(m, piece) * 16,
                        p.x + (real ? int64_t{m} * cols + k + piece * 8 : 0), real);
      }
    }
  }

  // x of a slot from bf16 to f16, divided by kHalfFactor.
  __device__ __forceinline__ void halve_tokens(uint32_t slot) const {
#pragma unroll
    for (int i = 0; i < (C::kMaxTokens * C::kXRow / 8 + 31) / 32; ++i) {
      const int at = i * 32 + lane;
      if (at >= p.tokens * C::kXRow / 8) break;
      const uint2 v = ptx::load_shared_8(slot + C::kXAt + at * 8);
      ptx::store_shared_8(slot + C::kXAt + at * 8, {half_pair(v.x), half_pair(v.y)});
    }
  }
};

template <bool kHalf>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    ptx::mma_f16(c, a, b0, b1);
  } else {
    ptx::mma_bf16(c, a, b0, b1);
  }
}

// One finished tile: sums of the warps [kWarps][kTileRows][tokens + 1] to the outputs. `squares`: this thread's running sums.
template <class C>
__device__ void finish(const LinearParams& p, const float* join, const float* factor, int tile, int thread, float* squares) {
  constexpr int kTileRows = C::kTileRows, kTokens = C::kTokens;
  auto sum = [&](int r, int m) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) y += join[(w * kTileRows + r) * C::kJoinStride + m];
    return y * factor[m];
  };
  if (p.out_kind == LinearOut::kGated) {
    for (int i = thread; i < kTileRows / 2 * kTokens; i += C::kThreads) {
      const int pair = i % (kTileRows / 2), m = i / (kTileRows / 2), r = pair / 8 * kGroupRows + pair % 8;
      const int row = tile * (kTileRows / 2) + pair;
      if (m >= p.tokens || row >= p.matrix[0].rows) continue;
      p.gated[int64_t{m} * p.matrix[0].rows + row] = __float2bfloat16(
          activate(RowConstants(p.matrix[0], row)(sum(r, m)), p.gelu) * RowConstants(p.matrix[1], row)(sum(r + 8, m)));
    }
    return;
  }
#pragma unroll
  for (int step = 0; step < C::kSteps; ++step) {
    const int i = thread + step * C::kThreads, r = i % kTileRows, m = i / kTileRows;
    float squared = 0;
    const RowPlace place = m < p.tokens ? row_place(p, kTileRows, tile, r) : RowPlace{nullptr, 0};
    if (place.matrix != nullptr) {
      float y = RowConstants(*place.matrix, place.row)(sum(r, m));
      const int column = tile * kTileRows + r;
      float* out = p.out + int64_t{m} * p.out_stride + column;
      if (p.out_kind == LinearOut::kResidual) {
        y += __ldcg(out);
        if (p.next != nullptr) p.next[int64_t{m} * p.out_stride + column] = __float2bfloat16(y * p.next_norm[column]);
        squared = y * y;
      } else {
        y = capped(p, y);
      }
      *out = y;
    }
    if (p.out_kind == LinearOut::kResidual && p.next != nullptr) {
#pragma unroll
      for (int o = kTileRows / 2; o > 0; o >>= 1) squared += __shfl_xor_sync(~0u, squared, o);
      squares[step] += squared;
    }
  }
}

template <WeightForm F, int T, int G>
__global__ void __launch_bounds__(Config<F, T, G, TAILRACE_ROOM>::kThreads, Config<F, T, G, TAILRACE_ROOM>::kCtasPerSm)
linear_kernel(const __grid_constant__ LinearParams p, int num_tiles) {
  using C = Config<F, T, G, TAILRACE_ROOM>;
  constexpr int NT = C::kTileTokens, kValues = Form<F>::kValues;
  extern __shared__ __align__(128) char shared[];
  float* join = reinterpret_cast<float*>(shared + C::kSlots * C::kWarps * C::kSlotBytes);
  float* factor = join + C::kJoinFloats;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  ptx::let_next_kernel_start();
  Stream<C, F> stream(p, ptx::smem_address(shared) + warp * C::kSlots * C::kSlotBytes, warp, lane);

  // What is loaded next: (tile, slice), ahead of what is multiplied by the ring.
  int load_tile = stream.slices > 0 ? blockIdx.x : num_tiles, load_slice = 0, slot = 0;
  stream.set_tile(blockIdx.x);
  const auto next = [&] {
    if (++load_slice < stream.slices) return;
    load_slice = 0, load_tile += gridDim.x;
    if (load_tile < num_tiles) stream.set_tile(load_tile);
  };
  int filled = 0;
  for (; filled < C::kSlots && load_tile < num_tiles; ++filled, next()) stream.load_weights(stream.slot(filled), load_slice);
  ptx::wait_for_previous_kernel();
  for (int i = 0; i < C::kSlots; ++i) {
    if (i < filled) stream.load_tokens(stream.slot(i), i % stream.slices);
    ptx::copy_commit();
  }
  for (int m = warp; m < C::kTokens; m += C::kWarps) {
    float total = 0;
    if (p.squares != nullptr && m < p.tokens) {
      for (int i = lane; i < p.num_squares; i += 32) total += __ldcg(p.squares + int64_t{i} * p.squares_stride + m);
#pragma unroll
      for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    }
    if (lane == 0) factor[m] = (Form<F>::kHalf ? kHalfFactor * Form<F>::kFactor : 1.0f) * (p.squares != nullptr ? norm_factor(p, total) : 1.0f);
  }

  const int g = lane / 4, c = lane % 4;
  const uint32_t row_at = g * kRowBytes, x_at = C::kXAt + g * C::kXRow;
  float squares[C::kSteps] = {};
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    float sums[G][NT][2][4] = {};  // of the even and the odd products: two chains hide each other's latency
    float scaled[G][NT][4] = {};   // where blocks of columns have scales
    const float* block_scales[G][2] = {};
    if (F == WeightForm::kFp8 && p.matrix[0].block_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < G * 2; ++i) {
        const RowPlace place = row_place(p, C::kTileRows, tile, i / 2 * kGroupRows + i % 2 * 8 + g);
        const int blocks = (stream.cols + kScaleBlock - 1) / kScaleBlock;
        if (place.matrix != nullptr) block_scales[i / 2][i % 2] = place.matrix->block_scale + int64_t{place.row} * blocks + warp;
      }
    }
    for (int slice = 0; slice < stream.slices; ++slice) {
      ptx::copy_wait_but<C::kSlots - 1>();
      __syncwarp();
      const uint32_t base = stream.slot(slot);
      if constexpr (Form<F>::kHalf) {
        stream.halve_tokens(base);
        __syncwarp();
      }
      const int count = stream.left(slice);
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        if (chunk * 4 * kValues >= count) break;
        const int piece = chunk * 4 + c;
#pragma unroll
        for (int group = 0; group < G; ++group) {
          const uint32_t row = base + row_at + group * kGroupRows * kRowBytes + (piece ^ weight_swizzle(g)) * 16;
          const uint32_t scales = base + C::kScalesAt + (group * kGroupRows + g) * C::kScaleRow;
          const Piece<F> low(ptx::load_shared_16(row), scales, piece);
          const Piece<F> high(ptx::load_shared_16(row + 8 * kRowBytes), scales + 8 * C::kScaleRow, piece);
#pragma unroll
          for (int j = 0; j < kValues / 8; ++j) {
            uint32_t a[4], b[4];
            low.pairs(j, a);
            high.pairs(j, b);
            const uint32_t a0[4] = {a[0], b[0], a[1], b[1]}, a1[4] = {a[2], b[2], a[3], b[3]};
#pragma unroll
            for (int t = 0; t < NT; ++t) {
              const uint4 x = ptx::load_shared_16(base + x_at + t * 8 * C::kXRow + x_piece<kValues>(g, piece * (kValues / 8) + j) * 16);
              multiply<Form<F>::kHalf>(sums[group][t][0], a0, x.x, x.y);
              multiply<Form<F>::kHalf>(sums[group][t][1], a1, x.z, x.w);
            }
          }
        }
      }
      if (F == WeightForm::kFp8 && p.matrix[0].block_scale != nullptr) {
#pragma unroll
        for (int i = 0; i < G * NT * 4; ++i) {
          const int group = i / 4 / NT, t = i / 4 % NT, e = i % 4;
          const float* scale = block_scales[group][e / 2];
          if (scale != nullptr) scaled[group][t][e] += scale[slice * C::kWarps] * (sums[group][t][0][e] + sums[group][t][1][e]);
          sums[group][t][0][e] = sums[group][t][1][e] = 0;
        }
      }
      __syncwarp();
      if (load_tile < num_tiles) {
        stream.load_weights(base, load_slice);
        stream.load_tokens(base, load_slice);
        next();
      }
      ptx::copy_commit();
      if (++slot == C::kSlots) slot = 0;
    }
    __syncthreads();  // the last tile's sums are read
#pragma unroll
    for (int i = 0; i < G * NT; ++i) {
      const int group = i / NT, t = i % NT;
      float* at = join + (warp * C::kTileRows + group * kGroupRows + g) * C::kJoinStride + t * 8 + c * 2;
      float total[4];
      for (int e = 0; e < 4; ++e) total[e] = sums[group][t][0][e] + sums[group][t][1][e] + scaled[group][t][e];
      at[0] = total[0], at[1] = total[1];
      at[8 * C::kJoinStride] = total[2], at[8 * C::kJoinStride + 1] = total[3];
    }
    __syncthreads();
    finish<C>(p, join, factor, tile, thread, squares);
  }
  if (p.out_kind == LinearOut::kResidual && p.next != nullptr && thread % C::kTileRows == 0) {
    for (int step = 0; step < C::kSteps; ++step) {
      const int m = (thread + step * C::kThreads) / C::kTileRows;
      if (m < p.tokens) p.out_squares[int64_t{blockIdx.x} * p.squares_stride + m] = squares[step];
    }
  }
}

int stacked_rows(const LinearParams& p) {
  int rows = 0;
  for (int i = 0; i < p.num_matrices; ++i) rows += p.matrix[i].rows;
  return p.out_kind == LinearOut::kGated ? 2 * p.matrix[0].rows : rows;
}

template <class C>
int num_tiles_of(const LinearParams& p) {
  return (stacked_rows(p) + C::kTileRows - 1) / C::kTileRows;
}

// As many CTAs as fit the GPU, each with the same number of tiles.
template <class C>
int num_ctas(const LinearParams& p, int num_sms) {
  const int tiles = num_tiles_of<C>(p), places = num_sms * C::kCtasPerSm, rounds = (tiles + places - 1) / places;
  return (tiles + rounds - 1) / rounds;
}

template <class C, typename Kernel>
cudaError_t launch(Kernel kernel, const LinearParams& p, int num_sms, cudaStream_t stream) {
  return launch_overlapped(kernel, num_ctas<C>(p, num_sms), C::kThreads, C::kSharedBytes, stream, p, num_tiles_of<C>(p));
}

constexpr int kManyRows = 16384;  // from here on tiles of 32 rows still give every SM several

// Calls fn(Config, kernel) of the form, the number of tokens and of rows.
template <typename Fn>
auto dispatch(const LinearParams& p, const Fn& fn) {
  const auto by_shape = [&]<WeightForm F>() {
    const auto call = [&]<int T, int G>() {
      if (has_hopper_code()) return fn(Config<F, T, G, kHopperRoom>(), linear_kernel<F, T, G>);
      return fn(Config<F, T, G, kPortableRoom>(), linear_kernel<F, T, G>);
    };
    const bool many = F != WeightForm::kBf16 && stacked_rows(p) >= kManyRows;
    constexpr int kGroupsOfMany = four_bits(F) ? 1 : 2;  // slots hold 256 columns of x there
    if (p.tokens > 8) return call.template operator()<16, kGroupsOfMany>();
    if (p.tokens > 1) return many ? call.template operator()<8, 2>() : call.template operator()<8, 1>();
    return many ? call.template operator()<1, 2>() : call.template operator()<1, 1>();
  };
  switch (p.matrix[0].form) {
    case WeightForm::kF16: return by_shape.template operator()<WeightForm::kF16>();
    case WeightForm::kFp8: return by_shape.template operator()<WeightForm::kFp8>();
    case WeightForm::kInt4: return by_shape.template operator()<WeightForm::kInt4>();
    case WeightForm::kNvfp4: return by_shape.template operator()<WeightForm::kNvfp4>();
    case WeightForm::kInt8: return by_shape.template operator()<WeightForm::kInt8>();
    default: return by_shape.template operator()<WeightForm::kBf16>();
  }
}

}  // namespace

cudaError_t prepare_linear() {
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kNvfp4,
                          WeightForm::kInt8}) {
    for (int tokens : {1, 8, 16}) {
      for (int rows : {1, kManyRows}) {
        LinearParams p;
        p.matrix[0].form = form, p.matrix[0].rows = rows;
        p.tokens = tokens;
        const cudaError_t error = dispatch(p, []<class C>(C, auto kernel) {
          return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
        });
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

int linear_ctas(const LinearParams& params, int num_sms) {
  return dispatch(params, [&]<class C>(C, auto) { return num_ctas<C>(params, num_sms); });
}

const char* matrices_unsupported(const LinearParams& params) {
  for (int i = 0; i < params.num_matrices; ++i) {
    if (value_row_bytes(params.matrix[i].form, params.matrix[i].cols) % 16 != 0) return "rows are not whole 16 bytes";
    if (params.matrix[i].form != params.matrix[0].form) return "the matrices are stored in different formats";
  }
  return nullptr;
}

cudaError_t run_linear(const LinearParams& params, int num_sms, cudaStream_t stream) {
  return dispatch(params, [&]<class C>(C, auto kernel) { return launch<C>(kernel, params, num_sms, stream); });
}

}  // namespace tailrace::cuda
