// The linear kernels, written once over an Isa: 16-lane floats V and sums I, and 64-byte code vectors W.
// Each output is accumulated over k in one fixed order, whatever the number of rows and tiles computed together:
//   quantised, per block:  sum = start + codes . q (exact int32);  acc = fma(sum, d_w * d_x, acc)
//                          with a minimum: acc = fma(m_w, d_x * sum(q), acc);  Q6_K, NVFP4: one fma per half block;
//                          at the end times the row's scale, where there is one
//   dense: acc = fma(w, x, acc) per k
// Few activation rows ("direct"): codes are unpacked in registers, each weight byte is read once; bound by memory.
// Many ("panel"): a chunk of K of kPanelTiles tiles is unpacked to L1, then multiplied with kPanelRows rows at a time;
// bound by the dot-product units: 8 dot products and 3-4 float operations per block and 16 outputs.
// Included by per-ISA files only: everything has internal linkage and no standard library function is called.
#pragma once

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_layout.h"

// Register blocks are arrays; they live in registers only when every loop over them is unrolled.
// Sanitized builds define it as nothing: they would take minutes to compile.
#ifndef TAILRACE_UNROLL
#define TAILRACE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tailrace::cpu {
namespace {

constexpr int kChunkBlocks = 3 * kGroupBlocks;  // K of a panel: with two tiles 30 KB, within L1
constexpr int64_t kInputBytesInL2 = 1 << 20;  // activations that are swept once per tile

enum class Algebra { kOffset, kMin, kHalves };

constexpr Algebra algebra(Format format) {
  return scheme(format).scales == Scales::kSuperD16 || scheme(format).scales == Scales::kE4M3 ? Algebra::kHalves
         : scheme(format).offset != 0               ? Algebra::kOffset
                                                    : Algebra::kMin;
}

// Panels of these formats are multiplied alike, so they share the code of one.
constexpr Format panel_format(Format format) { return algebra(format) == Algebra::kMin ? Format::kQ4_1 : format; }

struct Panel {
  alignas(64) uint8_t codes[kChunkBlocks][kQuads][kVector];
  alignas(64) float d[kChunkBlocks][kTile];
  alignas(64) float m[kChunkBlocks][kTile];  // the minimum; of halves: d of the second
};

template <Format F>
inline int32_t sum_start(const InputBlock& x) {
  constexpr int offset = scheme(F).offset;
  return offset == 8     ? x.minus_8
         : offset == 12  ? x.minus_12
         : offset == 16  ? x.minus_16
         : offset == 128 ? x.minus_128
                         : 0;
}

template <Format F>
inline int32_t half_start(const InputBlock& x, int half) {
  return scheme(F).offset == 12 ? x.minus_32[half] / 8 * 3 : x.minus_32[half];
}

inline int32_t load_4(const int8_t* q) {
  int32_t bytes;
  __builtin_memcpy(&bytes, q, 4);
  return bytes;
}

// The scales of block i of a group; m only where the format has one.
template <class Isa, Format F>
inline void load_scales(const uint8_t* scales, int i, typename Isa::V& d, typename Isa::V& m) {
  constexpr Scales kind = scheme(F).scales;
  if constexpr (kind == Scales::kE8M0) {
    d = Isa::load_half_e8m0(scales + i * kTile);
  } else if constexpr (kind == Scales::kE4M3) {
    d = Isa::mul(Isa::load_e4m3(scales + i * 2 * kTile), Isa::set1(0.5f));
    m = Isa::mul(Isa::load_e4m3(scales + i * 2 * kTile + kTile), Isa::set1(0.5f));
  } else if constexpr (kind == Scales::kD) {
    d = Isa::load_half(scales + i * 2 * kTile);
  } else if constexpr (kind == Scales::kDM) {
    d = Isa::load_half(scales + i * 4 * kTile);
    m = Isa::load_half(scales + i * 4 * kTile + 2 * kTile);
  } else if constexpr (kind == Scales::kSuperDM) {
    const uint8_t* sub = scales + 4 * kTile + i * 2 * kTile;
    d = Isa::mul(Isa::load_half(scales), Isa::load_u8(sub));
    m = Isa::mul(Isa::load_half(scales + 2 * kTile), Isa::sub(Isa::zero(), Isa::load_u8(sub + kTile)));
  } else {
    const uint8_t* sub = scales + 2 * kTile + i * 2 * kTile;
    const typename Isa::V all = Isa::load_half(scales);
    d = Isa::mul(all, Isa::load_s8(sub));
    m = Isa::mul(all, Isa::load_s8(sub + kTile));
  }
}

// acc[t][r] += scale[t] * x[r].d * sum over the quads [Begin, End) of one block, the sums starting at start(r).
template <class Isa, Format F, int Begin, int End, int T, int R, class Codes, class Start>
inline void add_products(const Codes& codes, const Start& start, const typename Isa::V (&scale)[T],
                         const InputBlock* const (&x)[R], typename Isa::V (&acc)[T][R]) {
  typename Isa::I sums[T][R];
  TAILRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) sums[t][r] = Isa::set1_int(start(*x[r]));
  }
  TAILRACE_UNROLL
  for (int q = Begin; q < End; ++q) {
    typename Isa::W w[T];
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) w[t] = codes(t, q);
    TAILRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const int32_t inputs = load_4(x[r]->q + 4 * q);
      TAILRACE_UNROLL
      for (int t = 0; t < T; ++t) sums[t][r] = Isa::template dot<scheme(F).bits>(sums[t][r], w[t], inputs);
    }
  }
  TAILRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      acc[t][r] = Isa::fma(Isa::to_float(sums[t][r]), Isa::mul(scale[t], Isa::set1(x[r]->d)), acc[t][r]);
    }
  }
}

// One block of T tiles times R rows, accumulated into acc; codes(t, q) yields a code vector.
template <class Isa, Format F, int T, int R, class Codes>
inline void multiply_block(const Codes& codes, const typename Isa::V (&d)[T], const typename Isa::V (&m)[T],
                           const InputBlock* const (&x)[R], typename Isa::V (&acc)[T][R]) {
  if constexpr (algebra(F) == Algebra::kHalves) {
    add_products<Isa, F, 0, kQuads / 2>(codes, [](const InputBlock& b) { return half_start<F>(b, 0); }, d, x, acc);
    add_products<Isa, F, kQuads / 2, kQuads>(codes, [](const InputBlock& b) { return half_start<F>(b, 1); }, m, x, acc);
    return;
  }
  add_products<Isa, F, 0, kQuads>(codes, [](const InputBlock& b) { return sum_start<F>(b); }, d, x, acc);
  if constexpr (algebra(F) == Algebra::kMin) {
    TAILRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      TAILRACE_UNROLL
      for (int t = 0; t < T; ++t) acc[t][r] = Isa::fma(m[t], Isa::set1(x[r]->d_sum), acc[t][r]);
    }
  }
}

// The code vectors of one block.
template <class Isa, Format F>
inline void unpack_codes(const uint8_t* codes, typename Isa::W (&w)[kQuads]) {
  Isa::template unpack<scheme(F).bits>(codes, w);
  if constexpr (scheme(F).e2m1) {
    TAILRACE_UNROLL
    for (int q = 0; q < kQuads; ++q) w[q] = Isa::look_up(kE2M1Codes, w[q]);
  }
}

inline int rows_of_tile(const LinearTask& task, int64_t tile) {
  const int64_t left = task.rows - tile * kTile;
  return left < kTile ? static_cast<int>(left) : kTile;
}

template <class Isa>
inline typename Isa::V add_bias(const LinearTask& task, int64_t tile, typename Isa::V acc) {
  if (task.bias == nullptr) return acc;
  return Isa::add(acc, Isa::load_n(task.bias + tile * kTile, rows_of_tile(task, tile)));
}

// A quantised row's sum times the scale of its row, where there is one, plus the bias.
template <class Isa>
inline typename Isa::V finish_row(const LinearTask& task, int64_t tile, typename Isa::V acc) {
  if (task.scale != nullptr) acc = Isa::mul(acc, Isa::load_n(task.scale + tile * kTile, rows_of_tile(task, tile)));
  return add_bias<Isa>(task, tile, acc);
}

// Prefetches one block's bytes a fixed distance ahead in the stream of tiles, at most up to its end.
template <class Isa, Format F>
inline void prefetch_ahead(const uint8_t* block, const uint8_t* end) {
  if constexpr (Isa::kPrefetchBytes > 0) {
    constexpr size_t bytes = group_bytes(F, kGroupBlocks) / kGroupBlocks;
    const uint8_t* ahead = block + Isa::kPrefetchBytes;
    if (ahead > end - bytes) ahead = end - bytes;
    TAILRACE_UNROLL
    for (size_t at = 0; at < bytes; at += 64) Isa::prefetch(ahead + at);
  }
}

template <class Isa, Format F, int R>
void direct_rows(const LinearTask& task) {
  constexpr int kBits = scheme(F).bits;
  const int64_t blocks = task.cols / kBlock;
  const size_t stride = tile_bytes(F, task.cols);
  const uint8_t* end = task.data + stride * task.tile_end;
  for (int64_t tile = task.tile_begin; tile < task.tile_end; ++tile) {
    const uint8_t* codes = task.data + stride * tile;
    const InputBlock* input = static_cast<const InputBlock*>(task.input);
    typename Isa::V acc[1][R], d[1], m[1];
    TAILRACE_UNROLL
    for (int r = 0; r < R; ++r) acc[0][r] = Isa::zero();
    m[0] = Isa::zero();
    for (int64_t group = 0; group * kGroupBlocks < blocks; ++group) {
      const int count = blocks_of_group(blocks, group);
      const uint8_t* scales = codes + code_bytes(kBits) * count;
      for (int i = 0; i < count; ++i, codes += code_bytes(kBits), ++input) {
        prefetch_ahead<Isa, F>(codes + i * scale_bytes(scheme(F).scales, kGroupBlocks) / kGroupBlocks, end);
        const InputBlock* x[R];
        TAILRACE_UNROLL
        for (int r = 0; r < R; ++r) x[r] = input + r * input_row_blocks(task.cols);
        typename Isa::W w[kQuads];
        unpack_codes<Isa, F>(codes, w);
        load_scales<Isa, F>(scales, i, d[0], m[0]);
        multiply_block<Isa, F, 1, R>([&w](int, int q) { return w[q]; }, d, m, x, acc);
      }
      codes = scales + scale_bytes(scheme(F).scales, count);
    }
    for (int r = 0; r < R; ++r) {
      Isa::store_n(task.y + r * task.y_stride + tile * kTile, finish_row<Isa>(task, tile, acc[0][r]),
                   rows_of_tile(task, tile));
    }
  }
}

// Blocks [begin, begin + count) of a tile; begin is a group's first.
template <class Isa, Format F>
void unpack_panel(const uint8_t* tile, int64_t blocks, int64_t begin, int count, Panel& panel) {
  constexpr int kBits = scheme(F).bits;
  const uint8_t* codes = tile + group_bytes(F, kGroupBlocks) * (begin / kGroupBlocks);
  for (int b = 0; b < count;) {
    const int in_group = blocks_of_group(blocks, (begin + b) / kGroupBlocks);
    const uint8_t* scales = codes + code_bytes(kBits) * in_group;
    for (int i = 0; i < in_group; ++i, ++b, codes += code_bytes(kBits)) {
      typename Isa::W w[kQuads];
      unpack_codes<Isa, F>(codes, w);
      TAILRACE_UNROLL
      for (int q = 0; q < kQuads; ++q) Isa::store_codes(panel.codes[b][q], w[q]);
      typename Isa::V d, m = Isa::zero();
      load_scales<Isa, F>(scales, i, d, m);
      Isa::store(panel.d[b], d);
      if constexpr (algebra(F) != Algebra::kOffset) Isa::store(panel.m[b], m);
    }
    codes = scales + scale_bytes(scheme(F).scales, in_group);
  }
}

// The packed bytes that the next panels need, prefetched in even shares while the present ones are multiplied.
struct Ahead {
  const uint8_t* next[2];  // one range per tile
  const uint8_t* end[2];
  int lines;               // per block of a register block of rows
};

template <class Isa>
inline void prefetch_share(Ahead& ahead) {
  const int range = ahead.next[0] < ahead.end[0] ? 0 : 1;
  const uint8_t* p = ahead.next[range];
  for (int i = 0; i < ahead.lines && p < ahead.end[range]; ++i, p += 64) Isa::prefetch_l2(p);
  ahead.next[range] = p;
}

// Where a panel's outputs are and which part of K it covers.
struct PanelSpan {
  int64_t tile, row, begin;  // first tile, activation row and block
  int count;                 // blocks
};

template <class Isa, Format F, int T, int R>
void panel_rows(const LinearTask& task, const Panel* panels, const PanelSpan& span, Ahead& ahead) {
  const int64_t blocks = task.cols / kBlock, x_stride = input_row_blocks(task.cols);
  const InputBlock* input = static_cast<const InputBlock*>(task.input) + span.row * x_stride + span.begin;
  float* y = task.y + span.row * task.y_stride + span.tile * kTile;
  typename Isa::V acc[T][R];
  TAILRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      acc[t][r] = span.begin == 0 ? Isa::zero()
                                  : Isa::load_n(y + r * task.y_stride + t * kTile, rows_of_tile(task, span.tile + t));
    }
  }
  for (int b = 0; b < span.count; ++b) {
    prefetch_share<Isa>(ahead);
    const InputBlock* x[R];
    TAILRACE_UNROLL
    for (int r = 0; r < R; ++r) x[r] = input + r * x_stride + b;
    typename Isa::V d[T], m[T];
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      d[t] = Isa::load(panels[t].d[b]);
      m[t] = algebra(F) == Algebra::kOffset ? Isa::zero() : Isa::load(panels[t].m[b]);
    }
    multiply_block<Isa, F, T, R>([&](int t, int q) { return Isa::load_codes(panels[t].codes[b][q]); }, d, m, x, acc);
  }
  const bool last = span.begin + span.count == blocks;
  TAILRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) {
      Isa::store_n(y + r * task.y_stride + t * kTile, last ? finish_row<Isa>(task, span.tile + t, acc[t][r]) : acc[t][r],
                   rows_of_tile(task, span.tile + t));
    }
  }
}

template <class Isa, Format F, int T, int R>
void panel_some_rows(int rows, const LinearTask& task, const Panel* panels, const PanelSpan& span, Ahead& ahead) {
  if (rows == R) return panel_rows<Isa, F, T, R>(task, panels, span, ahead);
  if constexpr (R > 1) panel_some_rows<Isa, F, T, R - 1>(rows, task, panels, span, ahead);
}

// Splits m rows into even pieces of at most `most`: the size of the next piece.
inline int next_rows(int64_t left, int most) {
  const int64_t pieces = (left + most - 1) / most;
  return static_cast<int>((left + pieces - 1) / pieces);
}

// What follows blocks [begin, begin + count) of `tiles` tiles: the rest of them, or the start of the next tiles.
template <Format F>
Ahead bytes_ahead(const LinearTask& task, int64_t tile, int tiles, int64_t after, int64_t rows, int most_rows) {
  const int64_t blocks = task.cols / kBlock;
  const size_t stride = tile_bytes(F, task.cols);
  if (after >= blocks) {
    tile += tiles;
    after = 0;
  }
  const int64_t left = blocks - after;
  const int64_t most = left < kChunkBlocks ? left : kChunkBlocks;
  const size_t groups = static_cast<size_t>((most + kGroupBlocks - 1) / kGroupBlocks);
  const size_t bytes = group_bytes(F, kGroupBlocks) * groups;
  const int64_t last = tile + tiles < task.tile_end ? tile + tiles : task.tile_end;
  Ahead ahead = {};
  for (int64_t t = tile; t < last; ++t) {
    ahead.next[t - tile] = task.data + stride * t + group_bytes(F, kGroupBlocks) * (after / kGroupBlocks);
    ahead.end[t - tile] = ahead.next[t - tile] + bytes;
  }
  // Spread over all register blocks of rows, or over eight where there are many.
  int64_t pieces = (rows + most_rows - 1) / most_rows;
  if (pieces > 8) pieces = 8;
  const int64_t shares = pieces * (kChunkBlocks < blocks ? kChunkBlocks : blocks);
  ahead.lines = static_cast<int>((static_cast<int64_t>(bytes) * tiles / 64 + shares - 1) / shares);
  return ahead;
}

template <class Isa, Format F, int T>
void panel_tiles(const LinearTask& task, int64_t tile, int64_t row_begin, int64_t row_end) {
  Panel panels[T];
  const int64_t blocks = task.cols / kBlock;
  const size_t stride = tile_bytes(F, task.cols);
  for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
    const int count = static_cast<int>(blocks - begin < kChunkBlocks ? blocks - begin : kChunkBlocks);
    TAILRACE_UNROLL
    for (int t = 0; t < T; ++t) unpack_panel<Isa, F>(task.data + stride * (tile + t), blocks, begin, count, panels[t]);
    Ahead ahead = bytes_ahead<F>(task, tile, T, begin + count, row_end - row_begin, Isa::kPanelRows);
    for (int64_t row = row_begin; row < row_end;) {
      const int rows = next_rows(row_end - row, Isa::kPanelRows);
      panel_some_rows<Isa, panel_format(F), T, Isa::kPanelRows>(rows, task, panels, {tile, row, begin, count}, ahead);
      row += rows;
    }
  }
}

// Activation rows that stay in L2 while the tiles sweep over them.
inline int64_t rows_per_sweep(size_t row_bytes) {
  const int64_t rows = kInputBytesInL2 / static_cast<int64_t>(row_bytes + 1);
  return rows < 48 ? 48 : rows;
}

template <class Isa, Format F, int R>
void direct_some_rows(const LinearTask& task) {
  if (task.m == R) return direct_rows<Isa, F, R>(task);
  if constexpr (R > 1) direct_some_rows<Isa, F, R - 1>(task);
}

template <class Isa, Format F>
void quant_linear(const LinearTask& task) {
  if (task.m <= Isa::kDirectRows) return direct_some_rows<Isa, F, Isa::kDirectRows>(task);
  const int64_t sweep = rows_per_sweep(int8_row_bytes(task.cols));
  for (int64_t row = 0; row < task.m; row += sweep) {
    const int64_t end = task.m - row < sweep ? task.m : row + sweep;
    int64_t tile = task.tile_begin;
    for (; tile + Isa::kPanelTiles <= task.tile_end; tile += Isa::kPanelTiles) {
      panel_tiles<Isa, F, Isa::kPanelTiles>(task, tile, row, end);
    }
    for (; tile < task.tile_end; ++tile) panel_tiles<Isa, F, 1>(task, tile, row, end);
  }
}

}  // namespace
}  // namespace tailrace::cpu
