// The dense half of the linear kernels (F32, F16, BF16, F8_E4M3), over the Isa of linear_kernels.h, and the choice by format.
// Included by per-ISA files only.
#pragma once

#include "kernels/cpu/linear_kernels.h"

namespace tailrace::cpu {
namespace {

// Steps along K: one k, or a pair for BF16.
template <Format F>
constexpr int kStep = F == Format::kBF16 ? 2 : 1;
template <Format F>
constexpr size_t kStepBytes = F == Format::kF16 ? 2 * kTile : F == Format::kF8E4M3 ? kTile : 4 * kTile;

template <class Isa, Format F>
inline void load_dense(const uint8_t* p, typename Isa::V (&w)[kStep<F>]) {
  if constexpr (F == Format::kBF16) Isa::load_bf16_pairs(p, w);
  if constexpr (F == Format::kF16) w[0] = Isa::load_half(p);
  if constexpr (F == Format::kF8E4M3) w[0] = Isa::load_e4m3(p);
  if constexpr (F == Format::kF32) w[0] = Isa::load(reinterpret_cast<const float*>(p));
}

template <class Isa, int T, int R>
inline void clear(typename Isa::V (&acc)[T][R]) {
  TAILRACE_UNROLL
  for (int t = 0; t < T; ++t) {
    TAILRACE_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = Isa::zero();
  }
}

// acc += w x over `cols` columns; tiles of w are `stride` bytes apart, rows of x `x_stride` floats.
template <class Isa, Format F, int T, int R>
inline void add_columns(const uint8_t* w, size_t stride, const float* x, int64_t x_stride, int64_t cols,
                        typename Isa::V (&acc)[T][R]) {
  for (int64_t k = 0; k < cols; k += kStep<F>, w += kStepBytes<F>, x += kStep<F>) {
    typename Isa::V weights[T][kStep<F>];
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) load_dense<Isa, F>(w + stride * t, weights[t]);
    TAILRACE_UNROLL
    for (int s = 0; s < kStep<F>; ++s) {
      TAILRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const typename Isa::V input = Isa::set1(x[x_stride * r + s]);
        TAILRACE_UNROLL
        for (int t = 0; t < T; ++t) acc[t][r] = Isa::fma(weights[t][s], input, acc[t][r]);
      }
    }
  }
}

// acc += scale * (the sum of the columns that it covers), scale by scale.
template <class Isa, Format F, int T, int R>
inline void add_scaled_columns(const LinearTask& task, int64_t tile, const uint8_t* w, size_t stride, const float* x,
                               int64_t x_stride, typename Isa::V (&acc)[T][R]) {
  const int64_t per_row = (task.cols + task.scale_cols - 1) / task.scale_cols;
  for (int64_t i = 0, k = 0; i < per_row; ++i, k += task.scale_cols) {
    typename Isa::V sums[T][R];
    clear<Isa>(sums);
    const int64_t cols = task.cols - k < task.scale_cols ? task.cols - k : task.scale_cols;
    add_columns<Isa, F, T, R>(w + k * kStepBytes<F>, stride, x + k, x_stride, cols, sums);
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      float lanes[kTile] = {};
      const float* of_tile = task.scale + (tile + t) * kTile * per_row + i;
      for (int lane = 0; lane < rows_of_tile(task, tile + t); ++lane) lanes[lane] = of_tile[lane * per_row];
      const typename Isa::V scale = Isa::load(lanes);
      TAILRACE_UNROLL
      for (int r = 0; r < R; ++r) acc[t][r] = Isa::fma(scale, sums[t][r], acc[t][r]);
    }
  }
}

template <class Isa, Format F, int T, int R>
void dense_rows(const LinearTask& task, int64_t tile, int64_t row) {
  const size_t stride = tile_bytes(F, task.cols);
  const int64_t x_stride = static_cast<int64_t>(f32_row_bytes(task.cols) / sizeof(float));
  const uint8_t* w = task.data + stride * tile;
  const float* x = static_cast<const float*>(task.input) + x_stride * row;
  typename Isa::V acc[T][R];
  clear<Isa>(acc);
  if constexpr (F == Format::kF8E4M3) {
    add_scaled_columns<Isa, F, T, R>(task, tile, w, stride, x, x_stride, acc);
  } else {
    add_columns<Isa, F, T, R>(w, stride, x, x_stride, task.cols, acc);
  }
  TAILRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      Isa::store_n(task.y + (row + r) * task.y_stride + (tile + t) * kTile, add_bias<Isa>(task, tile + t, acc[t][r]),
                   rows_of_tile(task, tile + t));
    }
  }
}

template <class Isa, Format F, int T, int R>
void dense_some_rows(int rows, const LinearTask& task, int64_t tile, int64_t row) {
  if (rows == R) return dense_rows<Isa, F, T, R>(task, tile, row);
  if constexpr (R > 1) dense_some_rows<Isa, F, T, R - 1>(rows, task, tile, row);
}

template <class Isa, Format F, int T, int R>
void dense_tiles(const LinearTask& task, int64_t tile, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end;) {
    const int rows = next_rows(row_end - row, R);
    dense_some_rows<Isa, F, T, R>(rows, task, tile, row);
    row += rows;
  }
}

template <class Isa, Format F>
void dense_linear(const LinearTask& task) {
  const int64_t sweep = rows_per_sweep(f32_row_bytes(task.cols));
  constexpr int kWide = 2 * Isa::kPanelTiles;  // few rows: more tiles, so that sums in flight cover the latency
  for (int64_t row = 0; row < task.m; row += sweep) {
    const int64_t end = task.m - row < sweep ? task.m : row + sweep;
    int64_t tile = task.tile_begin;
    if (task.m <= 2) {
      for (; tile + kWide <= task.tile_end; tile += kWide) dense_tiles<Isa, F, kWide, 2>(task, tile, row, end);
    }
    for (; tile + Isa::kPanelTiles <= task.tile_end; tile += Isa::kPanelTiles) {
      dense_tiles<Isa, F, Isa::kPanelTiles, Isa::kPanelRows>(task, tile, row, end);
    }
    for (; tile < task.tile_end; ++tile) dense_tiles<Isa, F, 1, Isa::kPanelRows>(task, tile, row, end);
  }
}

template <class Isa>
void isa_linear(const LinearTask& task) {
  switch (task.format) {
    case Format::kF32: return dense_linear<Isa, Format::kF32>(task);
    case Format::kF16: return dense_linear<Isa, Format::kF16>(task);
    case Format::kBF16: return dense_linear<Isa, Format::kBF16>(task);
    case Format::kQ4_0: return quant_linear<Isa, Format::kQ4_0>(task);
    case Format::kQ4_1: return quant_linear<Isa, Format::kQ4_1>(task);
    case Format::kQ5_0: return quant_linear<Isa, Format::kQ5_0>(task);
    case Format::kQ5_1: return quant_linear<Isa, Format::kQ5_1>(task);
    case Format::kQ8_0: return quant_linear<Isa, Format::kQ8_0>(task);
    case Format::kQ4_K: return quant_linear<Isa, Format::kQ4_K>(task);
    case Format::kQ5_K: return quant_linear<Isa, Format::kQ5_K>(task);
    case Format::kQ6_K: return quant_linear<Isa, Format::kQ6_K>(task);
    case Format::kF8E4M3: return dense_linear<Isa, Format::kF8E4M3>(task);
    case Format::kMXFP4: return quant_linear<Isa, Format::kMXFP4>(task);
    case Format::kNVFP4: return quant_linear<Isa, Format::kNVFP4>(task);
    case Format::kU8: return;
  }
}

// Below this a block of activations counts as zero: 127 / max must not overflow.
constexpr float kSmallestInput = 1e-30f;

constexpr float kOver127 = 1.0f / 127.0f;

// The codes are written already: d and what follows from it and from the sums of the codes' halves.
inline void finish_input_block(float d, int32_t low, int32_t high, InputBlock& block) {
  const int32_t sum = low + high;
  block.d = d;
  block.d_sum = d * static_cast<float>(sum);
  block.minus_8 = -8 * sum;
  block.minus_16 = -16 * sum;
  block.minus_128 = -128 * sum;
  block.minus_32[0] = -32 * low;
  block.minus_32[1] = -32 * high;
  block.minus_12 = -12 * sum;
}

}  // namespace
}  // namespace tailrace::cpu
