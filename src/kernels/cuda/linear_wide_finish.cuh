// What a CTA of linear_wide works on (tile, columns), and what becomes of its finished sums.
#pragma once

#include <cuda.h>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/linear_forms.cuh"

namespace tailrace::cuda::wide {

constexpr int kGroupRows = 64, kTileRows = 2 * kGroupRows;
constexpr int kConsumers = 256;             // threads that multiply
constexpr int kMaxSplits = 8;               // CTAs of a cluster
constexpr int kJoinStride = kTileRows + 4;  // floats; fragments are written without bank conflicts

struct Wide {
  LinearParams p;
  CUtensorMap values[kMaxLinearMatrices], scales[kMaxLinearMatrices], x;
  int token_tiles, splits;
};

// 64 rows of a matrix: a warp group's half of a tile. Rows beyond the matrix read as zeros and are not written.
struct HalfTile {
  int matrix, row, column;  // first row in the matrix, its column in the output
};
__device__ __forceinline__ HalfTile half_tile(const LinearParams& p, int tile, int half) {
  if (p.out_kind == LinearOut::kGated) return {half, tile * kGroupRows, tile * kGroupRows};
  int index = tile * 2 + half, column = 0;
  for (int i = 0; i < p.num_matrices; ++i) {
    const int count = (p.matrix[i].rows + kGroupRows - 1) / kGroupRows;
    if (index < count) return {i, index * kGroupRows, column + index * kGroupRows};
    index -= count, column += p.matrix[i].rows;
  }
  return {0, p.matrix[0].rows, 0};
}

// What a CTA does: part `rank` of the columns of one tile. The CTAs of all tokens follow each other, so that W is read
// once.
struct Work {
  int rank, row_tile, token_tile, begin, end;  // slices
  template <class C>
  static __device__ __forceinline__ Work of(const Wide& w) {
    const int rank = static_cast<int>(blockIdx.x) % w.splits, tile = static_cast<int>(blockIdx.x) / w.splits;
    const int slices = (w.p.matrix[0].cols + C::kSlice - 1) / C::kSlice;
    return {rank, tile / w.token_tiles, tile % w.token_tiles, slices * rank / w.splits, slices * (rank + 1) / w.splits};
  }
};

// What a lane writes of each token: four rows of its half of the tile.
struct LaneRows {
  int row, column, count;  // rows that are there
  int next[2];             // where the two pairs of them lie in a later projection's input
  bool whole;              // the four are written together
  RowConstants constants[4];
  __device__ __forceinline__ LaneRows(const LinearParams& p, const HalfTile& h, int lane)
      : row(h.row + lane % 16 * 4), column(h.column + lane % 16 * 4), count(min(4, p.matrix[h.matrix].rows - row)) {
    const auto out = reinterpret_cast<uintptr_t>(p.out + column);
    whole = count == 4 && out % 16 == 0 && p.out_stride % 4 == 0;
    for (int i = 0; i < 2; ++i) {
      next[i] = p.next_order == XOrder::kBf16 ? column + 2 * i : x_position(p.next_order, column + 2 * i);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) constants[i] = RowConstants(p.matrix[h.matrix], row + i);
    }
  }
  __device__ __forceinline__ void store(float* out, const float (&y)[4]) const {
    if (whole) {
      *reinterpret_cast<float4*>(out) = {y[0], y[1], y[2], y[3]};
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) out[i] = y[i];
    }
  }
  __device__ __forceinline__ void load(const float* out, float (&y)[4]) const {
    if (whole) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(out));
      y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = i < count ? __ldcg(out + i) : 0.0f;
  }
  // The four values of a token as a later projection reads them.
  __device__ __forceinline__ void store_next(XOrder order, __nv_bfloat16* to, const float (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t pair = ptx::pack_bf16(v[2 * i], v[2 * i + 1]);
      if (order != XOrder::kBf16) pair = half_pair(pair);
      auto* at = reinterpret_cast<uint16_t*>(to + next[i]);
      if (2 * i + 1 < count) {
        *reinterpret_cast<uint32_t*>(at) = pair;
      } else if (2 * i < count) {
        *at = static_cast<uint16_t>(pair);
      }
    }
  }
};

// The sums of all of the cluster's CTAs, in their order.
__device__ __forceinline__ void add_parts(uint32_t join, int splits, float (&y)[4]) {
  if (splits == 1) {
    const uint4 v = ptx::load_shared_16(join);
    y[0] = __uint_as_float(v.x), y[1] = __uint_as_float(v.y), y[2] = __uint_as_float(v.z), y[3] = __uint_as_float(v.w);
    return;
  }
  float4 part[kMaxSplits];
#pragma unroll
  for (int rank = 0; rank < kMaxSplits; ++rank) {
    if (rank < splits) part[rank] = load_remote_16(join, rank);
  }
  y[0] = y[1] = y[2] = y[3] = 0;
#pragma unroll
  for (int rank = 0; rank < kMaxSplits; ++rank) {
    if (rank < splits) y[0] += part[rank].x, y[1] += part[rank].y, y[2] += part[rank].z, y[3] += part[rank].w;
  }
}

// The tile's sums [token][row] in the shared memory of the cluster's CTAs to the outputs; this CTA takes a share of the
// tokens, a warp every eighth of them, a lane four rows. A loop for each kind and few copies of its body: code that
// runs once costs its fetching.
struct Finish {
  static constexpr int kStep = kConsumers / 32;
  const Wide& w;
  const Work& work;
  uint32_t join;        // this lane's rows of token 0
  const float* factor;
  int lane, first, begin, end;  // tokens: the tile's first, and this warp's in the tile

  __device__ __forceinline__ Finish(const Wide& w, const Work& work, int tile_tokens, uint32_t join,
                                    const float* factor)
      : w(w), work(work), lane(threadIdx.x % 32), first(work.token_tile * tile_tokens), factor(factor) {
    const int tokens = min(tile_tokens, w.p.tokens - first), share = (tokens + w.splits - 1) / w.splits;
    this->join = join + lane * 16;
    begin = work.rank * share + static_cast<int>(threadIdx.x) / 32, end = min(tokens, (work.rank + 1) * share);
  }
  __device__ __forceinline__ void sums_of(int m, const LaneRows& rows, float (&y)[4]) const {
    add_parts(join + m * kJoinStride * 4, w.splits, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = rows.constants[i](y[i] * factor[m]);
  }

  __device__ __forceinline__ void store(const LaneRows& rows) const {
    const LinearParams& p = w.p;
#pragma unroll 2
    for (int m = begin; m < end; m += kStep) {
      float y[4];
      sums_of(m, rows, y);
      if (p.softcap > 0) {
#pragma unroll
        for (float& v : y) v = capped(p, v);
      }
      rows.store(p.out + int64_t{first + m} * p.out_stride + rows.column, y);
    }
  }

  __device__ __forceinline__ void gate(const LaneRows& rows) const {
    const LinearParams& p = w.p;
#pragma unroll 1
    for (int m = begin; m < end; m += kStep) {
      float y[4], up[4];
      sums_of(m, rows, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) up[i] = __shfl_down_sync(~0u, y[i], 16);
      if (lane >= 16 || rows.count <= 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = activate(y[i], p.gelu) * up[i];
      rows.store_next(p.next_order, p.gated + int64_t{first + m} * p.matrix[0].rows, y);
    }
  }

  // What the residual's epilogue needs beside the sums, of kTogether tokens; asked for before the sums are joined.
  static constexpr int kTogether = 4;
  struct Residual {
    float norm[4] = {}, before[kTogether][4];
  };
  __device__ __forceinline__ void load_norm(const LaneRows& rows, Residual& residual) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (w.p.next != nullptr && i < rows.count) residual.norm[i] = w.p.next_norm[rows.column + i];
    }
  }
  __device__ __forceinline__ void load_before(const LaneRows& rows, int some, Residual& residual) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int m = max(min(some + i * kStep, end - 1), 0);
      rows.load(w.p.out + int64_t{first + m} * w.p.out_stride + rows.column, residual.before[i]);
    }
  }
  __device__ __forceinline__ void add(const LaneRows& rows, Residual& residual) const {
#pragma unroll 1
    for (int some = begin; some < end; some += kStep * kTogether) {
      if (some > begin) load_before(rows, some, residual);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int m = some + i * kStep;
        if (m < end) add_token(rows, residual.norm, m, residual.before[i]);
      }
    }
  }
  __device__ __forceinline__ void add_token(const LaneRows& rows, const float (&norm)[4], int m,
                                            const float (&before)[4]) const {
    const LinearParams& p = w.p;
    const int64_t at = int64_t{first + m} * p.out_stride;
    float y[4], squares = 0;
    sums_of(m, rows, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] += before[i];
      squares += i < rows.count ? y[i] * y[i] : 0.0f;
    }
    rows.store(p.out + at + rows.column, y);
    if (p.next == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] *= norm[i];
    rows.store_next(p.next_order, p.next + at, y);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
    if (lane == 0) p.out_squares[int64_t{work.row_tile} * p.squares_stride + first + m] = squares;
  }
};

}  // namespace tailrace::cuda::wide
