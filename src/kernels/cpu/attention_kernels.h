// The attention kernels, written once over the vectors of vector_types.h and compiled for each instruction set.
//
// Keys and values are bf16 in the pool and widened to fp32 on the way in: fp32 multiply-adds are twice as fast as
// vdpbf16ps on the machines measured, and keep q and the probabilities exact.
// Extend, per (tile of m = queries x group rows, chunk of n = 64 keys): 4 m n d FLOPs, 4 n d bytes; bound by FMA.
// Decode, per key and KV head: 4 d bytes, 4 d group FLOPs; bound by memory up to a group of about 8.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_types.h"
#include "kernels/kv_address.h"

namespace tailrace::cpu {
namespace {

constexpr int kMaxGroupHeads = 4;  // query heads that share a pass over K or V in registers

// What q is multiplied by, so that scores come out in log2 units (or as 2x/cap for the tanh of a soft cap).
INLINE float query_scale(const AttentionParams& p) {
  return p.softcap > 0 ? p.scale * 2.0f * kLog2e / p.softcap : p.scale * kLog2e;
}
INLINE V capped(V s, float softcap) {  // softcap * tanh(x), x = s / (2 log2 e)
  const V t = exp2v(s < 60.0f ? s : splat(60.0f));
  return softcap * kLog2e * (1.0f - 2.0f / (t + 1.0f));
}

// The rows of K and V of the chunk at `begin`: keys [from, end) through the block table, begin <= from < end. Keys before
// `from` may lie in stale blocks; they and those after `end` get readable stand-ins, whose probabilities must be zero.
struct KeyRows {
  const uint16_t* k[kKeyChunk];
  const uint16_t* v[kKeyChunk];
  int count;  // end - begin, at most kKeyChunk

  INLINE void find(const AttentionParams& p, int64_t slot, int64_t kv_head, int64_t begin, int64_t from, int64_t end) {
    count = static_cast<int>(end - begin);
    const int64_t head_dim = p.kv.head_dim, block_size = p.kv.block_size;
    for (int64_t at = from; at < end;) {
      const int64_t block = kv_block(p.kv, slot, at), token = at % block_size;
      const uint16_t* keys = p.kv.pool + kv_offset(p.kv, p.layer, block, 0, kv_head);
      const uint16_t* values = p.kv.pool + kv_offset(p.kv, p.layer, block, 1, kv_head);
      const int64_t length = block_size - token < end - at ? block_size - token : end - at;
      for (int64_t i = 0; i < length; ++i) {
        k[at - begin + i] = keys + (token + i) * head_dim;
        v[at - begin + i] = values + (token + i) * head_dim;
      }
      at += length;
    }
    const auto fill = [&](int64_t first, int64_t last, int64_t source) {
      for (int64_t i = first; i < last; ++i) {
        k[i] = k[source];
        v[i] = v[source];
      }
    };
    fill(0, from - begin, from - begin);
    fill(count, kKeyChunk, count - 1);
  }
};

// Folds a chunk of scores [kKeyChunk] into the running maximum and the running sums, one a lane: scores become
// probabilities; returns the factor that earlier outputs must be multiplied by.
INLINE float online_softmax(float* s, float* max, float* sums) {
  V top = load(s);
  UNROLL for (int i = W; i < kKeyChunk; i += W) top = vmax(top, load(s + i));
  const float chunk_max = max_lane(top);
  const float new_max = chunk_max > *max ? chunk_max : *max;
  if (new_max == kNegInf) {  // nothing visible yet: -inf - -inf must not be formed
    for (int i = 0; i < kKeyChunk; i += W) store(s + i, V{});
    return 1.0f;
  }
  V total{};
  UNROLL for (int i = 0; i < kKeyChunk; i += W) {
    const V probability = exp2v(load(s + i) - new_max);
    store(s + i, probability);
    total += probability;
  }
  const float factor = new_max == *max ? 1.0f : exp2s(*max - new_max);
  store(sums, load(sums) * factor + total);
  *max = new_max;
  return factor;
}

// Decode ----------------------------------------------------------------------------------------------------------------

// s[h][t] = q[h] . k[t] for H heads and a chunk of keys. W keys are transposed in registers, so that lanes are keys. Asks for
// the values of the chunk meanwhile; decode_values asks for the next chunk's keys.
template <int H>
INLINE void decode_scores(const float* q, int64_t head_dim, const KeyRows& rows, float* s) {
  for (int t = 0; t < rows.count; t += W) {
    const uint16_t* const* k = rows.k + t;
    V even[H] = {}, odd[H] = {};
    int64_t d = 0;
    for (; d + 2 * W <= head_dim; d += 2 * W) {
      V pairs[W];
      UNROLL for (int i = 0; i < W; ++i) {
        pairs[i] = (V)load_pairs(k[i] + d);
        __builtin_prefetch(rows.v[t + i] + d);
      }
      transpose(pairs);
      UNROLL for (int i = 0; i < W; ++i) {
        const V a = even_bf16((VI)pairs[i]), b = odd_bf16((VI)pairs[i]);
        UNROLL for (int h = 0; h < H; ++h) {
          even[h] += a * q[h * head_dim + d + 2 * i];
          odd[h] += b * q[h * head_dim + d + 2 * i + 1];
        }
      }
    }
    if (d < head_dim) {
      V lanes[W];
      UNROLL for (int i = 0; i < W; ++i) lanes[i] = load_bf16(k[i] + d);
      transpose(lanes);
      UNROLL for (int i = 0; i < W; ++i) {
        UNROLL for (int h = 0; h < H; ++h) even[h] += lanes[i] * q[h * head_dim + d + i];
      }
    }
    UNROLL for (int h = 0; h < H; ++h) store(s + h * kKeyChunk + t, even[h] + odd[h]);
  }
}

// out[h][d0, d0 + 2 * P * W) = factor[h] * out + sum_t s[h][t] v[t], in pairs: each 2 * W of out hold the even dims, then
// the odd ones.
template <int H, int P>
INLINE void decode_values(const float* s, const float* factor, const KeyRows& rows, const KeyRows& next, int64_t d0,
                          float* out, int64_t out_stride) {
  V acc[H][2 * P];
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int i = 0; i < 2 * P; ++i) acc[h][i] = load(out + h * out_stride + d0 + i * W) * factor[h];
  }
  for (int t = 0; t < rows.count; ++t) {
    V value[2 * P];
    UNROLL for (int i = 0; i < P; ++i) {
      const VI pairs = load_pairs(rows.v[t] + d0 + 2 * i * W);
      __builtin_prefetch(next.k[t] + d0 + 2 * i * W);
      value[2 * i] = even_bf16(pairs);
      value[2 * i + 1] = odd_bf16(pairs);
    }
    UNROLL for (int h = 0; h < H; ++h) {
      const V probability = splat(s[h * kKeyChunk + t]);
      UNROLL for (int i = 0; i < 2 * P; ++i) acc[h][i] += probability * value[i];
    }
  }
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int i = 0; i < 2 * P; ++i) store(out + h * out_stride + d0 + i * W, acc[h][i]);
  }
}

// The last W dims where head_dim is an odd multiple of W; in order.
template <int H>
INLINE void decode_last_values(const float* s, const float* factor, const KeyRows& rows, int64_t d0, float* out,
                               int64_t out_stride) {
  for (int h = 0; h < H; ++h) {
    V acc = load(out + h * out_stride + d0) * factor[h];
    for (int t = 0; t < rows.count; ++t) acc += s[h * kKeyChunk + t] * load_bf16(rows.v[t] + d0);
    store(out + h * out_stride + d0, acc);
  }
}

// One chunk of keys for H query heads; sums [H][W].
template <int H>
void decode_chunk(const AttentionParams& p, const float* q, const KeyRows& rows, const KeyRows& next, float* max,
                  float* sums, float* out, int64_t out_stride) {
  alignas(64) float s[H * kKeyChunk];
  float factor[H];
  decode_scores<H>(q, p.head_dim, rows, s);
  for (int h = 0; h < H; ++h) {
    float* row = s + h * kKeyChunk;
    if (p.softcap > 0) {
      for (int i = 0; i < rows.count; i += W) store(row + i, capped(load(row + i), p.softcap));
    }
    for (int i = rows.count; i < kKeyChunk; ++i) row[i] = kNegInf;
    factor[h] = online_softmax(row, max + h, sums + h * W);
  }
  constexpr int P = W == 16 ? 2 : 1;
  int64_t d = 0;
  for (; d + 2 * P * W <= p.head_dim; d += 2 * P * W) decode_values<H, P>(s, factor, rows, next, d, out, out_stride);
  for (; d + 2 * W <= p.head_dim; d += 2 * W) decode_values<H, 1>(s, factor, rows, next, d, out, out_stride);
  if (d < p.head_dim) decode_last_values<H>(s, factor, rows, d, out, out_stride);
}

void decode(const AttentionParams& p, int32_t row, int32_t kv_head, KeyRange keys, float* max, float* sum, float* out,
            int64_t out_stride, float* scratch) {
  const int group = p.q_heads / p.kv_heads;
  const int64_t head_dim = p.head_dim;
  const float* q = p.q + p.rows[row].q_start * p.q_stride + int64_t{kv_head} * group * head_dim;
  float* sums = scratch + group * head_dim;  // [group][W]
  const float scale = query_scale(p);
  for (int64_t i = 0; i < group * head_dim; i += W) store(scratch + i, load(q + i) * scale);
  for (int h = 0; h < group; ++h) {
    max[h] = kNegInf;
    store(sums + h * W, V{});
    for (int64_t d = 0; d < head_dim; d += W) store(out + h * out_stride + d, V{});
  }
  const int64_t slot = p.rows[row].slot;
  const auto chunk_end = [&](int64_t begin) {
    const int64_t end = (begin / kKeyChunk + 1) * kKeyChunk;
    return end < keys.end ? end : keys.end;
  };
  KeyRows chunks[2];  // the current one and the next
  if (keys.begin < keys.end) chunks[0].find(p, slot, kv_head, keys.begin, keys.begin, chunk_end(keys.begin));
  int current = 0;
  for (int64_t begin = keys.begin; begin < keys.end; current ^= 1) {
    const int64_t end = chunk_end(begin);
    const KeyRows& rows = chunks[current];
    if (end < keys.end) chunks[current ^ 1].find(p, slot, kv_head, end, end, chunk_end(end));
    const KeyRows& next = end < keys.end ? chunks[current ^ 1] : rows;
    for (int h = 0; h < group; h += kMaxGroupHeads) {
      const float* heads = scratch + h * head_dim;
      float *to = out + h * out_stride, *lanes = sums + h * W;
      switch (group - h < kMaxGroupHeads ? group - h : kMaxGroupHeads) {
        case 1: decode_chunk<1>(p, heads, rows, next, max + h, lanes, to, out_stride); break;
        case 2: decode_chunk<2>(p, heads, rows, next, max + h, lanes, to, out_stride); break;
        case 3: decode_chunk<3>(p, heads, rows, next, max + h, lanes, to, out_stride); break;
        default: decode_chunk<4>(p, heads, rows, next, max + h, lanes, to, out_stride); break;
      }
    }
    begin = end;
  }
  for (int h = 0; h < group; ++h) {
    sum[h] = sum_lanes(load(sums + h * W));
    for (int64_t d = 0; d + 2 * W <= head_dim; d += 2 * W) {
      float* at = out + h * out_stride + d;
      V even = load(at), odd = load(at + W);
      interleave(&even, &odd, Lanes{});
      store(at, even);
      store(at + W, odd);
    }
  }
}

// Extend ----------------------------------------------------------------------------------------------------------------

constexpr int kMicroRows = 6;
constexpr int kMicroVectors = W == 16 ? 4 : 2;

// c[M][N * W] = (c * keep) + a[M][depth] b[depth][N * W]
template <int M, int N>
INLINE void micro(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                  int64_t depth, bool accumulate) {
  V acc[M][N] = {};
  if (accumulate) {
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int n = 0; n < N; ++n) acc[m][n] = load(c + m * c_stride + n * W);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    V row[N];
    UNROLL for (int n = 0; n < N; ++n) row[n] = load(b + k * b_stride + n * W);
    UNROLL for (int m = 0; m < M; ++m) {
      const V value = splat(a[m * a_stride + k]);
      UNROLL for (int n = 0; n < N; ++n) acc[m][n] += value * row[n];
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int n = 0; n < N; ++n) store(c + m * c_stride + n * W, acc[m][n]);
  }
}

template <int M>
void micro_columns(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                   int64_t depth, int64_t columns, bool accumulate) {
  int64_t n = 0;
  for (; n + kMicroVectors * W <= columns; n += kMicroVectors * W) {
    micro<M, kMicroVectors>(a, a_stride, b + n, b_stride, c + n, c_stride, depth, accumulate);
  }
  for (; n < columns; n += W) micro<M, 1>(a, a_stride, b + n, b_stride, c + n, c_stride, depth, accumulate);
}

// c [rows][columns] (+)= a [rows][depth] b [depth][columns]; columns a multiple of W.
void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
              int64_t rows, int64_t depth, int64_t columns, bool accumulate) {
  int64_t m = 0;
  for (; m + kMicroRows <= rows; m += kMicroRows) {
    micro_columns<kMicroRows>(a + m * a_stride, a_stride, b, b_stride, c + m * c_stride, c_stride, depth, columns,
                              accumulate);
  }
  a += m * a_stride;
  c += m * c_stride;
  switch (rows - m) {
    case 1: micro_columns<1>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    case 2: micro_columns<2>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    case 3: micro_columns<3>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    case 4: micro_columns<4>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    case 5: micro_columns<5>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    default: break;
  }
}

// keys [head_dim][kKeyChunk] and values [kKeyChunk][head_dim] of a chunk, fp32. Keys are transposed as pairs of bf16.
void widen(const KeyRows& rows, int64_t head_dim, float* keys, float* values) {
  for (int t = 0; t < rows.count; t += W) {
    int64_t d = 0;
    for (; d + 2 * W <= head_dim; d += 2 * W) {
      V pairs[W];
      UNROLL for (int i = 0; i < W; ++i) pairs[i] = (V)load_pairs(rows.k[t + i] + d);
      transpose(pairs);
      UNROLL for (int i = 0; i < W; ++i) {
        store(keys + (d + 2 * i) * kKeyChunk + t, even_bf16((VI)pairs[i]));
        store(keys + (d + 2 * i + 1) * kKeyChunk + t, odd_bf16((VI)pairs[i]));
      }
    }
    for (; d < head_dim; d += W) {
      V lanes[W];
      UNROLL for (int i = 0; i < W; ++i) lanes[i] = load_bf16(rows.k[t + i] + d);
      transpose(lanes);
      UNROLL for (int i = 0; i < W; ++i) store(keys + (d + i) * kKeyChunk + t, lanes[i]);
    }
  }
  for (int t = 0; t < rows.count; ++t) {
    for (int64_t d = 0; d < head_dim; d += W) store(values + t * head_dim + d, load_bf16(rows.v[t] + d));
  }
}

constexpr int kBlockRows = 4 * kMicroRows;  // of a tile at a time: their scores and outputs stay in the first-level cache

// The arrays of one tile, cut from the thread's scratch.
struct Tile {
  float *q, *out, *scores, *keys, *values, *sums, *max;

  Tile(float* scratch, int64_t rows, int64_t head_dim) {
    q = scratch;
    out = q + rows * head_dim;
    scores = out + rows * head_dim;  // [kBlockRows][kKeyChunk]
    keys = scores + kBlockRows * kKeyChunk;
    values = keys + head_dim * kKeyChunk;
    sums = values + head_dim * kKeyChunk;  // [rows][W]
    max = sums + rows * W;
  }
};

// Hides scores of the chunk [begin, end) that the query at `position` does not see, caps, and folds the row in.
INLINE void softmax_row(const AttentionParams& p, const Tile& tile, float* s, int64_t row, int64_t position,
                        int64_t begin, int64_t end) {
  if (p.softcap > 0) {
    for (int i = 0; i < kKeyChunk; i += W) store(s + i, capped(load(s + i), p.softcap));
  }
  const int64_t first = first_visible(position, p.window), last = position + 1 < end ? position + 1 : end;
  for (int64_t i = last - begin > 0 ? last - begin : 0; i < kKeyChunk; ++i) s[i] = kNegInf;
  const int64_t hidden = first - begin < kKeyChunk ? first - begin : kKeyChunk;
  for (int64_t i = 0; i < hidden; ++i) s[i] = kNegInf;
  const float factor = online_softmax(s, tile.max + row, tile.sums + row * W);
  if (factor != 1.0f) {
    float* out = tile.out + row * p.head_dim;
    for (int64_t d = 0; d < p.head_dim; d += W) store(out + d, load(out + d) * factor);
  }
}

// One chunk of keys for all rows of a tile whose first query is at `position`. Rows take part up to the last key that one
// of their block sees; what they skip would add zeros.
INLINE void extend_chunk(const AttentionParams& p, const Tile& tile, int64_t rows, int64_t position, int64_t begin,
                         int64_t end) {
  const int64_t group = p.q_heads / p.kv_heads, head_dim = p.head_dim;
  for (int64_t m = 0; m < rows; m += kBlockRows) {
    const int64_t n = rows - m < kBlockRows ? rows - m : kBlockRows;
    const int64_t first_query = position + m / group, last_query = position + (m + n - 1) / group;
    if (last_query < begin || first_visible(first_query, p.window) >= end) continue;
    const int64_t count = (last_query + 1 < end ? last_query + 1 : end) - begin, columns = (count + W - 1) / W * W;
    multiply(tile.q + m * head_dim, head_dim, tile.keys, kKeyChunk, tile.scores, kKeyChunk, n, head_dim, columns, false);
    for (int64_t i = 0; i < n; ++i) {
      softmax_row(p, tile, tile.scores + i * kKeyChunk, m + i, position + (m + i) / group, begin, end);
    }
    multiply(tile.scores, kKeyChunk, tile.values, head_dim, tile.out + m * head_dim, head_dim, n, count, head_dim, true);
  }
}

// The epilogue of one row: the sink joins the denominator, the output is normalised.
INLINE void finish_row(const Tile& tile, int64_t row, const float* sink, int64_t head_dim, float* out) {
  const float max = tile.max[row], sink_max = sink != nullptr ? *sink * kLog2e : kNegInf;
  const float top = sink_max > max ? sink_max : max;
  if (top == kNegInf) {  // only where scores are not numbers: a query sees itself
    for (int64_t d = 0; d < head_dim; d += W) store(out + d, V{});
    return;
  }
  const float weight = exp2s(max - top);
  const float inverse = weight / (weight * sum_lanes(load(tile.sums + row * W)) + exp2s(sink_max - top));
  for (int64_t d = 0; d < head_dim; d += W) store(out + d, load(tile.out + row * head_dim + d) * inverse);
}

void extend(const AttentionParams& p, int32_t row, int32_t kv_head, int32_t q_begin, int32_t q_end, float* scratch) {
  const int64_t group = p.q_heads / p.kv_heads, head_dim = p.head_dim, rows = (q_end - q_begin) * group;
  const BatchRow& r = p.rows[row];
  const int64_t position = r.kv_len - r.q_len + q_begin;  // of the tile's first query
  const int64_t keys_end = position + (q_end - q_begin);
  const Tile tile(scratch, rows, head_dim);
  const float scale = query_scale(p);
  for (int64_t m = 0; m < rows; ++m) {
    const float* q = p.q + (r.q_start + q_begin + m / group) * p.q_stride + (kv_head * group + m % group) * head_dim;
    for (int64_t d = 0; d < head_dim; d += W) {
      store(tile.q + m * head_dim + d, load(q + d) * scale);
      store(tile.out + m * head_dim + d, V{});
    }
    store(tile.sums + m * W, V{});
    tile.max[m] = kNegInf;
  }
  KeyRows keys;
  const int64_t visible = first_visible(position, p.window);  // blocks before it may be stale
  for (int64_t begin = visible / kKeyChunk * kKeyChunk; begin < keys_end; begin += kKeyChunk) {
    const int64_t end = begin + kKeyChunk < keys_end ? begin + kKeyChunk : keys_end;
    keys.find(p, r.slot, kv_head, begin, begin > visible ? begin : visible, end);
    widen(keys, head_dim, tile.keys, tile.values);
    extend_chunk(p, tile, rows, position, begin, end);
  }
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t head = kv_head * group + m % group;
    finish_row(tile, m, p.sinks != nullptr ? p.sinks + head : nullptr, head_dim,
               p.out + (r.q_start + q_begin + m / group) * p.out_stride + head * head_dim);
  }
}

}  // namespace
}  // namespace tailrace::cpu
