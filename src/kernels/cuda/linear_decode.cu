// Projections of few tokens: a stream of weights through shared memory past tensor cores.
//
// Mapping. A tile is 16 or 32 output rows (gated: 8 of gate and 8 of up in each 16) over all columns; a CTA takes every grid-th
// tile, and two CTAs share an SM, so that one streams while the other finishes a tile. Its eight warps share out the columns; each keeps its own ring of slices (16 rows x 128 bytes and the tokens' x), filled by 16-byte
// asynchronous copies, and multiplies them (m16n8k16: weights are the 16, tokens the 8) without waiting for another warp;
// their sums meet in shared memory at a tile's end. Which column sits in which slot of a fragment does not matter as long as
// weights and x agree, so a lane reads 8 consecutive values of a row with one load.
// Launch. Weights do not depend on the kernel before: the rings are filled before waiting for it, and the next kernel may
// start (and fill its rings) while this one runs: two CTAs fit an SM where tokens are few.
// Norm. W (x * g * r) = r W (x * g): the token's factor r is applied to the sums, from partial sums of squares that the kernel
// before left; so no kernel exists for a norm between residual and projection.
// Bound: bytes of weights / HBM bandwidth; past 16 tokens x, read again for each 16 rows, outgrows the weights.
#include "kernels/cuda/linear_decode.h"

#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {
namespace {

constexpr int kGroupRows = 16, kWarps = 8, kThreads = kWarps * 32, kMaxSlots = 8;
constexpr float kHalfFactor = 16.0f;

// ---- Weight forms ------------------------------------------------------------------------------------------------
// A ring slot holds 128 bytes of each row. A lane's load of 16 of them gives kValues consecutive values; pairs(j) gives eight
// of those, from 8 j on, as pairs for the tensor cores: bf16 as it is stored, everything else as f16, which holds e4m3 and
// integers exactly. x is bf16; for f16 a warp rewrites its slice, 1/16 of its size so that no activation is too large.

__host__ __device__ constexpr int padded_scales(int bytes) { return (bytes + 15) / 16 * 16; }  // copies move 16 bytes

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ __half2 halves_of(uint32_t v) { return *reinterpret_cast<const __half2*>(&v); }

template <WeightForm F>
struct Form;

template <>
struct Form<WeightForm::kBf16> {
  static constexpr int kValues = 8;
  static constexpr bool kHalf = false;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols * 2; }
  static __host__ __device__ constexpr int scale_bytes(int) { return 0; }
  struct Piece {
    uint4 v;
    __device__ __forceinline__ Piece(const uint4& v, const char*, int) : v(v) {}
    __device__ __forceinline__ void pairs(int, uint32_t (&w)[4]) const { w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w; }
  };
};

template <>
struct Form<WeightForm::kF16> : Form<WeightForm::kBf16> {
  static constexpr bool kHalf = true;
};

template <>
struct Form<WeightForm::kFp8> {
  static constexpr int kValues = 16;
  static constexpr bool kHalf = true;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols; }
  static __host__ __device__ constexpr int scale_bytes(int) { return 0; }
  struct Piece {
    uint32_t v[4];
    __device__ __forceinline__ Piece(const uint4& v, const char*, int) : v{v.x, v.y, v.z, v.w} {}
    __device__ __forceinline__ void pairs(int j, uint32_t (&w)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(w[i]) : "h"(static_cast<uint16_t>(v[2 * j + i / 2] >> (16 * (i % 2)))));
      }
    }
  };
};

template <>
struct Form<WeightForm::kInt4> {
  static constexpr int kValues = 32;
  static constexpr bool kHalf = true;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols / 2; }
  static __host__ __device__ constexpr int scale_bytes(int cols) { return padded_scales(cols / 32 * 4); }
  struct Piece {  // one block
    uint32_t v[4];
    __half2 d, m;
    __device__ __forceinline__ Piece(const uint4& v, const char* scales, int piece) : v{v.x, v.y, v.z, v.w} {
      const __half2 s = *reinterpret_cast<const __half2*>(scales + piece * 4);
      d = __low2half2(s), m = __high2half2(s);
    }
    __device__ __forceinline__ void pairs(int j, uint32_t (&w)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 q = halves_of(((v[j] >> (4 * i)) & 0x000f000fu) | 0x64006400u);  // 1024 + q
        w[i] = bits_of(__hfma2(__hsub2(q, __float2half2_rn(1024.0f)), d, m));
      }
    }
  };
};

template <>
struct Form<WeightForm::kInt8> {
  static constexpr int kValues = 16;
  static constexpr bool kHalf = true;
  static __host__ __device__ constexpr int value_bytes(int cols) { return cols; }
  static __host__ __device__ constexpr int scale_bytes(int cols) { return padded_scales(cols / 32 * 8); }
  struct Piece {  // half a block
    uint32_t v[4];
    __half2 d, m;
    __device__ __forceinline__ Piece(const uint4& v, const char* scales, int piece) : v{v.x ^ kFlip, v.y ^ kFlip, v.z ^ kFlip, v.w ^ kFlip} {
      const auto* s = reinterpret_cast<const __half*>(scales + piece / 2 * 8);
      d = __half2half2(s[piece % 2]), m = __half2half2(s[2]);
    }
    static constexpr uint32_t kFlip = 0x80808080u;  // q + 128
    __device__ __forceinline__ void pairs(int j, uint32_t (&w)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 q = halves_of(__byte_perm(v[2 * j + i / 2], 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342));  // 1024 + 128 + q
        w[i] = bits_of(__hfma2(__hsub2(q, __float2half2_rn(1152.0f)), d, m));
      }
    }
  };
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

template <WeightForm F, int NT>
struct Config {
  static_assert(F != WeightForm::kFp8 || 8 * Form<F>::kValues == kScaleBlock);  // a slice has one block scale
  static constexpr int kTokens = NT * 8;
  static constexpr int kGroups = NT == 1 ? 1 : 2;  // of 16 rows: x is read once for all of them
  static constexpr int kTileRows = kGroups * kGroupRows;
  static constexpr int kSlice = 8 * Form<F>::kValues;  // columns of a slot
  static constexpr int kScaleRow = Form<F>::scale_bytes(kSlice), kXRow = kSlice * 2;
  static constexpr int kScalesAt = kTileRows * kRowBytes, kXAt = kScalesAt + kTileRows * kScaleRow;
  static constexpr int kJoinStride = kTokens + 1;
  static constexpr int kSteps = (kTokens * kTileRows + kThreads - 1) / kThreads;  // outputs of a tile per thread
  static constexpr int kJoinFloats = kWarps * kTileRows * kJoinStride;
  // Lanes of tokens that are not there read up to this far behind the last slot; what they read goes nowhere.
  static_assert(kJoinFloats * 4 >= 7 * kXRow);
  static __host__ __device__ constexpr int slot_bytes(int tokens) { return kXAt + tokens * kXRow; }
  static int shared_bytes(int tokens, int slots) { return slots * kWarps * slot_bytes(tokens) + (kJoinFloats + kTokens) * 4; }
  // Slots of a ring: half an SM's shared memory, so that another CTA fits beside, unless that leaves too few.
  static int slots(int tokens) {
    const int fixed = (kJoinFloats + kTokens) * 4, slot = kWarps * slot_bytes(tokens);
    const int room = (112 * 1024 - fixed) / slot;
    return std::min(kMaxSlots, room >= 3 ? room : (225 * 1024 - fixed) / slot);
  }
};

// Until the oldest of `slots` groups of copies has landed.
__device__ __forceinline__ void wait_for_slot(int slots) {
  switch (slots) {
    case 8: ptx::copy_wait_but<7>(); break;
    case 7: ptx::copy_wait_but<6>(); break;
    case 6: ptx::copy_wait_but<5>(); break;
    case 5: ptx::copy_wait_but<4>(); break;
    case 4: ptx::copy_wait_but<3>(); break;
    case 3: ptx::copy_wait_but<2>(); break;
    default: ptx::copy_wait_but<1>(); break;
  }
}

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
template <WeightForm F, int NT>
struct Stream {
  using C = Config<F, NT>;
  static constexpr int kCopies = C::kTileRows * 8 / 32, kScalePieces = C::kScaleRow / 16;
  static constexpr int kScaleCopies = (C::kTileRows * kScalePieces + 31) / 32;
  const LinearParams& p;
  char* ring;      // of this warp
  int lane, cols;
  int begin;       // first column of the warp: slices are dealt in turn, so that the warps read whole kilobytes of a row together
  int slices;      // of a tile
  const char* from[kCopies];                                  // this lane's piece of each of its rows, at `begin`; null: no such row
  const char* scales_from[kScaleCopies > 0 ? kScaleCopies : 1];

  __device__ Stream(const LinearParams& p, char* ring, int warp, int lane) : p(p), ring(ring), lane(lane), cols(p.matrix[0].cols) {
    begin = warp * C::kSlice;
    slices = begin < cols ? (cols - begin - 1) / (kWarps * C::kSlice) + 1 : 0;
  }
  // Columns from the slice's first to the row's end.
  __device__ int left(int slice) const { return cols - begin - slice * (kWarps * C::kSlice); }
  __device__ char* slot(int i) const { return ring + i * C::slot_bytes(p.tokens); }

  __device__ void set_tile(int tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const RowPlace place = row_place(p, C::kTileRows, tile, i * 4 + lane / 8);
      from[i] = place.matrix == nullptr ? nullptr
                                        : static_cast<const char*>(place.matrix->values) +
                                              int64_t{place.row} * Form<F>::value_bytes(cols) + Form<F>::value_bytes(begin) + lane % 8 * 16;
    }
    if constexpr (kScalePieces > 0) {
#pragma unroll
      for (int i = 0; i < kScaleCopies; ++i) {
        const int at = i * 32 + lane;
        const RowPlace place = at / kScalePieces < C::kTileRows ? row_place(p, C::kTileRows, tile, at / kScalePieces) : RowPlace{nullptr, 0};
        scales_from[i] = place.matrix == nullptr ? nullptr
                                                 : static_cast<const char*>(place.matrix->scales) + int64_t{place.row} * Form<F>::scale_bytes(cols) +
                                                       begin / 32 * (Form<F>::scale_bytes(128) / 4) + at % kScalePieces * 16;
      }
    }
  }
  __device__ __forceinline__ void load_weights(char* slot, int slice) const {
    const bool whole = Form<F>::value_bytes(left(slice)) > lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = i * 4 + lane / 8;
      const bool real = whole && from[i] != nullptr;
      ptx::copy_16(slot + r * kRowBytes + ((lane % 8) ^ weight_swizzle(r)) * 16, real ? from[i] + slice * (kWarps * kRowBytes) : reinterpret_cast<const char*>(p.x), real);
    }
    if constexpr (kScalePieces > 0) {
#pragma unroll
      for (int i = 0; i < kScaleCopies; ++i) {
        const int at = i * 32 + lane;
        const bool real = scales_from[i] != nullptr && Form<F>::scale_bytes(left(slice)) > at % kScalePieces * 16;
        if (at < C::kTileRows * kScalePieces) {
          ptx::copy_16(slot + C::kScalesAt + at * 16, real ? scales_from[i] + slice * (kWarps * C::kScaleRow) : reinterpret_cast<const char*>(p.x), real);
        }
      }
    }
  }
  __device__ __forceinline__ void load_tokens(char* slot, int slice) const {
    constexpr int kPieces = C::kXRow / 16;
    const int k = cols - left(slice), pieces = left(slice) / 8;
    for (int i = lane; i < p.tokens * kPieces; i += 32) {
      const int m = i / kPieces, piece = i % kPieces;
      const bool real = piece < pieces;  // beyond the row's end zeros: a weight of zero times garbage may be no number
      ptx::copy_16(slot + C::kXAt + m * C::kXRow + x_piece<Form<F>::kValues>(m, piece) * 16, real ? p.x + int64_t{m} * cols + k + piece * 8 : p.x, real);
    }
  }

  // x of a slot from bf16 to f16, divided by kHalfFactor.
  __device__ __forceinline__ void halve_tokens(char* slot) const {
    auto* x = reinterpret_cast<uint2*>(slot + C::kXAt);
    for (int i = lane; i < p.tokens * C::kXRow / 8; i += 32) {
      const uint2 v = x[i];
      const auto half_pair = [](uint32_t pair) {
        return bits_of(__floats2half2_rn(__uint_as_float(pair << 16) * (1 / kHalfFactor), __uint_as_float(pair & 0xffff0000u) * (1 / kHalfFactor)));
      };
      x[i] = {half_pair(v.x), half_pair(v.y)};
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

__device__ __forceinline__ float activate(float v, bool gelu) {
  if (!gelu) return v / (1.0f + __expf(-v));
  const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
  return 0.5f * v * (1.0f + tanhf(inner));
}

// One finished tile: sums of the warps [kWarps][kTileRows][tokens + 1] to the outputs. `squares`: this thread's running sums.
template <class C>
__device__ void finish(const LinearParams& p, const float* join, const float* factor, int tile, int thread, float* squares) {
  constexpr int kTileRows = C::kTileRows, kTokens = C::kTokens;
  auto sum = [&](int r, int m) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) y += join[(w * kTileRows + r) * C::kJoinStride + m];
    return y * factor[m];
  };
  if (p.out_kind == LinearOut::kGated) {
    for (int i = thread; i < kTileRows / 2 * kTokens; i += kThreads) {
      const int pair = i % (kTileRows / 2), m = i / (kTileRows / 2), r = pair / 8 * kGroupRows + pair % 8;
      const int row = tile * (kTileRows / 2) + pair;
      if (m >= p.tokens || row >= p.matrix[0].rows) continue;
      float gate = sum(r, m), up = sum(r + 8, m);
      if (p.matrix[0].row_scale != nullptr) gate *= p.matrix[0].row_scale[row], up *= p.matrix[1].row_scale[row];
      if (p.matrix[0].bias != nullptr) gate += p.matrix[0].bias[row], up += p.matrix[1].bias[row];
      p.gated[int64_t{m} * p.matrix[0].rows + row] = __float2bfloat16(activate(gate, p.gelu) * up);
    }
    return;
  }
#pragma unroll
  for (int step = 0; step < C::kSteps; ++step) {
    const int i = thread + step * kThreads, r = i % kTileRows, m = i / kTileRows;
    float squared = 0;
    const RowPlace place = m < p.tokens ? row_place(p, kTileRows, tile, r) : RowPlace{nullptr, 0};
    if (place.matrix != nullptr) {
      float y = sum(r, m);
      if (place.matrix->row_scale != nullptr) y *= place.matrix->row_scale[place.row];
      if (place.matrix->bias != nullptr) y += place.matrix->bias[place.row];
      const int column = tile * kTileRows + r;
      float* out = p.out + int64_t{m} * p.out_stride + column;
      if (p.out_kind == LinearOut::kResidual) {
        y += __ldcg(out);
        if (p.next != nullptr) p.next[int64_t{m} * p.out_stride + column] = __float2bfloat16(y * p.next_norm[column]);
        squared = y * y;
      } else if (p.softcap > 0) {
        y = p.softcap * tanhf(y / p.softcap);
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

template <WeightForm F, int NT>
__global__ void __launch_bounds__(kThreads) linear_kernel(const __grid_constant__ LinearParams p, int num_tiles, int slots) {
  using C = Config<F, NT>;
  extern __shared__ __align__(128) char shared[];
  float* join = reinterpret_cast<float*>(shared + slots * kWarps * C::slot_bytes(p.tokens));
  float* factor = join + C::kJoinFloats;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  ptx::let_next_kernel_start();
  Stream<F, NT> stream(p, shared + warp * slots * C::slot_bytes(p.tokens), warp, lane);

  // What is loaded next: (tile, slice), ahead of what is multiplied by the ring.
  int load_tile = stream.slices > 0 ? blockIdx.x : num_tiles, load_slice = 0, slot = 0;
  stream.set_tile(blockIdx.x);
  const auto next = [&] {
    if (++load_slice < stream.slices) return;
    load_slice = 0, load_tile += gridDim.x;
    if (load_tile < num_tiles) stream.set_tile(load_tile);
  };
  int filled = 0;
  for (; filled < slots && load_tile < num_tiles; ++filled, next()) stream.load_weights(stream.slot(filled), load_slice);
  ptx::wait_for_previous_kernel();
  for (int i = 0; i < slots; ++i) {
    if (i < filled) stream.load_tokens(stream.slot(i), i % stream.slices);
    ptx::copy_commit();
  }
  for (int m = warp; m < C::kTokens; m += kWarps) {
    float total = 0;
    if (p.squares != nullptr && m < p.tokens) {
      for (int i = lane; i < p.num_squares; i += 32) total += __ldcg(p.squares + i * kMaxLinearTokens + m);
#pragma unroll
      for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    }
    if (lane == 0) factor[m] = (Form<F>::kHalf ? kHalfFactor : 1.0f) * (p.squares != nullptr ? rsqrtf(total / static_cast<float>(stream.cols) + p.eps) : 1.0f);
  }

  const int g = lane / 4, c = lane % 4;
  float squares[C::kSteps] = {};
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    float sums[C::kGroups][NT][2][4] = {};  // of the even and the odd products: two chains hide each other's latency
    float scaled[C::kGroups][NT][4] = {};   // where blocks of columns have scales
    const float* block_scales[C::kGroups][2] = {};
    if (F == WeightForm::kFp8 && p.matrix[0].block_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < C::kGroups * 2; ++i) {
        const RowPlace place = row_place(p, C::kTileRows, tile, i / 2 * kGroupRows + i % 2 * 8 + g);
        const int blocks = (stream.cols + kScaleBlock - 1) / kScaleBlock;
        if (place.matrix != nullptr) block_scales[i / 2][i % 2] = place.matrix->block_scale + int64_t{place.row} * blocks + warp;
      }
    }
    for (int slice = 0; slice < stream.slices; ++slice) {
      wait_for_slot(slots);
      __syncwarp();
      char* base = stream.slot(slot);
      if constexpr (Form<F>::kHalf) {
        stream.halve_tokens(base);
        __syncwarp();
      }
      const int count = stream.left(slice);
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        constexpr int kValues = Form<F>::kValues;
        if (chunk * 4 * kValues >= count) break;
        const int piece = chunk * 4 + c;
#pragma unroll
        for (int group = 0; group < C::kGroups; ++group) {
          const int r = group * kGroupRows + g;
          const char* row = base + r * kRowBytes + (piece ^ weight_swizzle(r)) * 16;
          const typename Form<F>::Piece low(*reinterpret_cast<const uint4*>(row), base + C::kScalesAt + r * C::kScaleRow, piece);
          const typename Form<F>::Piece high(*reinterpret_cast<const uint4*>(row + 8 * kRowBytes), base + C::kScalesAt + (r + 8) * C::kScaleRow, piece);
#pragma unroll
          for (int j = 0; j < kValues / 8; ++j) {
            uint32_t a[4], b[4];
            low.pairs(j, a);
            high.pairs(j, b);
            const uint32_t a0[4] = {a[0], b[0], a[1], b[1]}, a1[4] = {a[2], b[2], a[3], b[3]};
#pragma unroll
            for (int t = 0; t < NT; ++t) {
              const uint4 x = *reinterpret_cast<const uint4*>(base + C::kXAt + (t * 8 + g) * C::kXRow + x_piece<kValues>(g, piece * (kValues / 8) + j) * 16);
              multiply<Form<F>::kHalf>(sums[group][t][0], a0, x.x, x.y);
              multiply<Form<F>::kHalf>(sums[group][t][1], a1, x.z, x.w);
            }
          }
        }
      }
      if (F == WeightForm::kFp8 && p.matrix[0].block_scale != nullptr) {
#pragma unroll
        for (int i = 0; i < C::kGroups * NT * 4; ++i) {
          const int group = i / 4 / NT, t = i / 4 % NT, e = i % 4;
          const float* scale = block_scales[group][e / 2];
          if (scale != nullptr) scaled[group][t][e] += scale[slice * kWarps] * (sums[group][t][0][e] + sums[group][t][1][e]);
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
      if (++slot == slots) slot = 0;
    }
    __syncthreads();  // the last tile's sums are read
#pragma unroll
    for (int i = 0; i < C::kGroups * NT; ++i) {
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
      const int m = (thread + step * kThreads) / C::kTileRows;
      if (m < p.tokens) p.out_squares[blockIdx.x * kMaxLinearTokens + m] = squares[step];
    }
  }
}

int num_tiles_of(const LinearParams& p) {
  const int tile_rows = p.tokens <= 8 ? kGroupRows : 2 * kGroupRows;
  if (p.out_kind == LinearOut::kGated) return (2 * p.matrix[0].rows + tile_rows - 1) / tile_rows;
  int rows = 0;
  for (int i = 0; i < p.num_matrices; ++i) rows += p.matrix[i].rows;
  return (rows + tile_rows - 1) / tile_rows;
}

// CTAs that fit an SM by shared memory, each with the same number of tiles.
template <class C>
int num_ctas(const LinearParams& p, int num_sms) {
  const bool two = C::shared_bytes(p.tokens, C::slots(p.tokens)) <= 113 * 1024;
  const int tiles = num_tiles_of(p), places = num_sms * (two ? 2 : 1), rounds = (tiles + places - 1) / places;
  return (tiles + rounds - 1) / rounds;
}

template <class C, typename Kernel>
cudaError_t launch(Kernel kernel, const LinearParams& p, int num_sms, cudaStream_t stream) {
  // A short sequence leaves room for the next kernel to fill its rings beside.
  const int ctas = num_ctas<C>(p, num_sms), tiles = num_tiles_of(p);
  const int slices = (tiles + ctas - 1) / ctas * ((p.matrix[0].cols + kWarps * C::kSlice - 1) / (kWarps * C::kSlice));
  const int slots = std::min(C::slots(p.tokens), std::max(3, slices / 2));
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = C::shared_bytes(p.tokens, slots);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, tiles, slots);
}

// Calls fn(Config, kernel) of the form and the number of tokens.
template <typename Fn>
auto dispatch(const LinearParams& p, const Fn& fn) {
  const auto by_tokens = [&]<WeightForm F>() {
    if (p.tokens <= 8) return fn(Config<F, 1>(), linear_kernel<F, 1>);
    return fn(Config<F, 2>(), linear_kernel<F, 2>);
  };
  switch (p.matrix[0].form) {
    case WeightForm::kFp8: return by_tokens.template operator()<WeightForm::kFp8>();
    case WeightForm::kInt4: return by_tokens.template operator()<WeightForm::kInt4>();
    case WeightForm::kInt8: return by_tokens.template operator()<WeightForm::kInt8>();
    case WeightForm::kF16: return by_tokens.template operator()<WeightForm::kF16>();
    default: return by_tokens.template operator()<WeightForm::kBf16>();
  }
}

}  // namespace

cudaError_t prepare_linear() {
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kInt8}) {
    for (int tokens : {8, 16}) {
      LinearParams p;
      p.matrix[0].form = form;
      p.tokens = tokens;
      const cudaError_t error = dispatch(p, [](auto, auto kernel) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024);
      });
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

int linear_ctas(const LinearParams& params, int num_sms) {
  return dispatch(params, [&](auto config, auto) { return num_ctas<decltype(config)>(params, num_sms); });
}

const char* linear_unsupported(const LinearParams& params) {
  if (params.tokens > kMaxLinearTokens) return "too many tokens";
  for (int i = 0; i < params.num_matrices; ++i) {
    if (params.matrix[i].cols % 32 != 0) return "rows are not a multiple of 32 values";
    if (params.matrix[i].form != params.matrix[0].form) return "the matrices are stored in different formats";
  }
  return nullptr;
}

cudaError_t run_linear(const LinearParams& params, int num_sms, cudaStream_t stream) {
  return dispatch(params, [&](auto config, auto kernel) {
    return launch<decltype(config)>(kernel, params, num_sms, stream);
  });
}

}  // namespace tailrace::cuda
