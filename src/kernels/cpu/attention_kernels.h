// The attention kernels, written once over the vectors of vector_types.h and compiled for each instruction set.
//
// Keys and values are bf16 in the pool and widened to fp32 on the way in: fp32 multiply-adds are twice as fast as
// vdpbf16ps on the machines measured, and keep q and the probabilities exact. From a pool of e4m3 each chunk is first
// widened to bf16 in scratch, exactly, so that there is one arithmetic.
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
// Another KV head's rows lie head_stride(p) elements further.
INLINE int64_t head_stride(const AttentionParams& p) { return int64_t{p.kv.block_size} * p.kv.head_dim; }
template <typename T>
struct Rows {
  const T* k[kKeyChunk];
  const T* v[kKeyChunk];
  int count;  // end - begin, at most kKeyChunk

  INLINE void find(const AttentionParams& p, int64_t slot, int64_t kv_head, int64_t begin, int64_t from, int64_t end) {
    count = static_cast<int>(end - begin);
    const int64_t head_dim = p.kv.head_dim, block_size = p.kv.block_size;
    for (int64_t at = from; at < end;) {
      const int64_t block = kv_block(p.kv, slot, at), token = at % block_size;
      const T* keys = static_cast<const T*>(p.kv.pool) + kv_offset(p.kv, p.layer, block, 0, kv_head);
      const T* values = static_cast<const T*>(p.kv.pool) + kv_offset(p.kv, p.layer, block, 1, kv_head);
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
using KeyRows = Rows<uint16_t>;
using CodeRows = Rows<uint8_t>;  // e4m3

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

INLINE void prefetch_far(const void* line) { __builtin_prefetch(line, 0, 2); }  // into the second-level cache

// The chunk `codes` of the head at `offset` as bf16 rows in `memory` [K|V][kKeyChunk][head_dim]. Asks for `next`'s rows.
INLINE void widen_codes(const CodeRows& codes, const CodeRows& next, int64_t offset, int64_t head_dim, uint16_t* memory,
                        KeyRows* rows) {
  rows->count = codes.count;
  for (int t = 0; t < kKeyChunk; ++t) {
    const int at = t < codes.count ? t : codes.count - 1;
    uint16_t *k = memory + at * head_dim, *v = k + kKeyChunk * head_dim;
    rows->k[t] = k;
    rows->v[t] = v;
    if (t >= codes.count) continue;
    for (int64_t d = 0; d < head_dim; d += 64) {
      prefetch_far(next.k[t] + offset + d);
      prefetch_far(next.v[t] + offset + d);
    }
    widen_e4m3(codes.k[t] + offset, head_dim, k);
    widen_e4m3(codes.v[t] + offset, head_dim, v);
  }
}

// One chunk of keys of a KV head, and the next one, which is asked for while this one is used.
struct HeadRows {
  const KeyRows& rows;
  const KeyRows& next;
  int64_t offset;  // of the head, from the pointers in rows

  INLINE const uint16_t* k(int64_t t) const { return rows.k[t] + offset; }
  INLINE const uint16_t* v(int64_t t) const { return rows.v[t] + offset; }
};

// s[h][t] = q[h] . k[t] for H heads and a chunk of keys. W keys are transposed in registers, so that lanes are keys. Asks for
// the keys of the next chunk meanwhile; decode_values asks for its values.
template <int H>
INLINE void decode_scores(const float* q, int64_t head_dim, const HeadRows& chunk, float* s) {
  for (int t = 0; t < chunk.rows.count; t += W) {
    const uint16_t* k[W];
    UNROLL for (int i = 0; i < W; ++i) k[i] = chunk.k(t + i);
    V even[H] = {}, odd[H] = {};
    int64_t d = 0;
    for (; d + 2 * W <= head_dim; d += 2 * W) {
      V pairs[W];
      UNROLL for (int i = 0; i < W; ++i) {
        pairs[i] = (V)load_pairs(k[i] + d);
        prefetch_far(chunk.next.k[t + i] + chunk.offset + d);
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
INLINE void decode_values(const float* s, const float* factor, const HeadRows& chunk, int64_t d0, float* out,
                          int64_t out_stride) {
  V acc[H][2 * P];
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int i = 0; i < 2 * P; ++i) acc[h][i] = load(out + h * out_stride + d0 + i * W) * factor[h];
  }
  for (int t = 0; t < chunk.rows.count; ++t) {
    V value[2 * P];
    UNROLL for (int i = 0; i < P; ++i) {
      const VI pairs = load_pairs(chunk.v(t) + d0 + 2 * i * W);
      prefetch_far(chunk.next.v[t] + chunk.offset + d0 + 2 * i * W);
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
INLINE void decode_last_values(const float* s, const float* factor, const HeadRows& chunk, int64_t d0, float* out,
                               int64_t out_stride) {
  for (int h = 0; h < H; ++h) {
    V acc = load(out + h * out_stride + d0) * factor[h];
    for (int t = 0; t < chunk.rows.count; ++t) acc += s[h * kKeyChunk + t] * load_bf16(chunk.v(t) + d0);
    store(out + h * out_stride + d0, acc);
  }
}

// One chunk of keys for H query heads; sums [H][W].
template <int H>
void decode_chunk(const AttentionParams& p, const float* q, const HeadRows& chunk, float* max, float* sums, float* out,
                  int64_t out_stride) {
  alignas(64) float s[H * kKeyChunk];
  float factor[H];
  const int count = chunk.rows.count;
  decode_scores<H>(q, p.head_dim, chunk, s);
  for (int h = 0; h < H; ++h) {
    float* row = s + h * kKeyChunk;
    if (p.softcap > 0) {
      for (int i = 0; i < count; i += W) store(row + i, capped(load(row + i), p.softcap));
    }
    for (int i = count; i < kKeyChunk; ++i) row[i] = kNegInf;
    factor[h] = online_softmax(row, max + h, sums + h * W);
  }
  constexpr int P = W == 16 ? 2 : 1;
  int64_t d = 0;
  for (; d + 2 * P * W <= p.head_dim; d += 2 * P * W) decode_values<H, P>(s, factor, chunk, d, out, out_stride);
  for (; d + 2 * W <= p.head_dim; d += 2 * W) decode_values<H, 1>(s, factor, chunk, d, out, out_stride);
  if (d < p.head_dim) decode_last_values<H>(s, factor, chunk, d, out, out_stride);
}

// One chunk for the query heads of one KV head.
INLINE void decode_heads(const AttentionParams& p, const HeadRows& chunk, int group, const float* q, float* max, float* sums,
                         float* out, int64_t out_stride) {
  for (int h = 0; h < group; h += kMaxGroupHeads) {
    const float* heads = q + h * p.head_dim;
    float *to = out + h * out_stride, *lanes = sums + h * W;
    switch (group - h < kMaxGroupHeads ? group - h : kMaxGroupHeads) {
      case 1: decode_chunk<1>(p, heads, chunk, max + h, lanes, to, out_stride); break;
      case 2: decode_chunk<2>(p, heads, chunk, max + h, lanes, to, out_stride); break;
      case 3: decode_chunk<3>(p, heads, chunk, max + h, lanes, to, out_stride); break;
      default: decode_chunk<4>(p, heads, chunk, max + h, lanes, to, out_stride); break;
    }
  }
}

// Asks for a whole chunk of the KV heads [0, kv_heads) of `rows`: nobody asked for a task's first one.
template <typename T>
INLINE void prefetch_chunk(const AttentionParams& p, const Rows<T>& rows, int32_t kv_heads) {
  constexpr int64_t kLine = 64 / sizeof(T);  // values
  for (int32_t h = 0; h < kv_heads; ++h) {
    for (int t = 0; t < rows.count; ++t) {
      for (int64_t d = 0; d < p.head_dim; d += kLine) {
        prefetch_far(rows.k[t] + h * head_stride(p) + d);
        prefetch_far(rows.v[t] + h * head_stride(p) + d);
      }
    }
  }
}

// Chunk by chunk, all KV heads of each: a block's keys and values of all heads lie together and are read as one stream.
template <typename T>
INLINE void decode_from(const AttentionParams& p, int32_t row, KeyRange keys, float* max, float* sum, float* out,
                        int64_t out_stride, float* scratch) {
  const int group = p.q_heads / p.kv_heads;
  const int64_t head_dim = p.head_dim;
  const float* q = p.q + p.rows[row].q_start * p.q_stride;
  float* sums = scratch + p.q_heads * head_dim;  // [q_heads][W]
  auto* widened = reinterpret_cast<uint16_t*>(sums + p.q_heads * W);
  const float scale = query_scale(p);
  for (int64_t i = 0; i < p.q_heads * head_dim; i += W) store(scratch + i, load(q + i) * scale);
  for (int h = 0; h < p.q_heads; ++h) {
    max[h] = kNegInf;
    store(sums + h * W, V{});
    for (int64_t d = 0; d < head_dim; d += W) store(out + h * out_stride + d, V{});
  }
  const int64_t slot = p.rows[row].slot;
  const auto chunk_end = [&](int64_t begin) {
    const int64_t end = (begin / kKeyChunk + 1) * kKeyChunk;
    return end < keys.end ? end : keys.end;
  };
  Rows<T> chunks[2];  // the current one and the next
  if (keys.begin < keys.end) {
    chunks[0].find(p, slot, 0, keys.begin, keys.begin, chunk_end(keys.begin));
    prefetch_chunk(p, chunks[0], p.kv_heads);
  }
  int current = 0;
  for (int64_t begin = keys.begin; begin < keys.end; current ^= 1) {
    const int64_t end = chunk_end(begin);
    if (end < keys.end) chunks[current ^ 1].find(p, slot, 0, end, end, chunk_end(end));
    const Rows<T>& next = chunks[end < keys.end ? current ^ 1 : current];
    for (int32_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
      const int32_t h = kv_head * group;
      const int64_t offset = kv_head * head_stride(p);
      const auto attend = [&](const HeadRows& chunk) {
        decode_heads(p, chunk, group, scratch + h * head_dim, max + h, sums + h * W, out + h * out_stride, out_stride);
      };
      if constexpr (sizeof(T) == 1) {
        KeyRows rows;
        widen_codes(chunks[current], next, offset, head_dim, widened, &rows);
        attend({rows, rows, 0});
      } else {
        attend({chunks[current], next, offset});
      }
    }
    begin = end;
  }
  for (int h = 0; h < p.q_heads; ++h) {
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

void decode(const AttentionParams& p, int32_t row, KeyRange keys, float* max, float* sum, float* out,
            int64_t out_stride, float* scratch) {
  if (p.kv.format == Format::kF8E4M3) return decode_from<uint8_t>(p, row, keys, max, sum, out, out_stride, scratch);
  decode_from<uint16_t>(p, row, keys, max, sum, out, out_stride, scratch);
}

// Extend ----------------------------------------------------------------------------------------------------------------

constexpr int kMicroRows = 6;
constexpr int kMicroVectors = W == 16 ? 4 : 2;

// The keys and values of the next chunk, asked for line by line while this one is multiplied: asked for at once they would
// hold up the loads behind them.
struct Ahead {
  const KeyRows& next;
  int64_t head_dim;
  int t = 0;
  int64_t d = 0;

  INLINE void ask() {
    if (t >= next.count) return;
    prefetch_far(next.k[t] + d);
    prefetch_far(next.v[t] + d);
    d += 32;  // values of a line
    if (d < head_dim) return;
    d = 0;
    ++t;
  }
};

// c[M][N * W] = (c * keep) + a[M][depth] b[depth][N * W]
template <int M, int N>
INLINE void micro(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                  int64_t depth, bool accumulate, Ahead& ahead) {
  V acc[M][N] = {};
  if (accumulate) {
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int n = 0; n < N; ++n) acc[m][n] = load(c + m * c_stride + n * W);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    ahead.ask();
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
                   int64_t depth, int64_t columns, bool accumulate, Ahead& ahead) {
  int64_t n = 0;
  for (; n + kMicroVectors * W <= columns; n += kMicroVectors * W) {
    micro<M, kMicroVectors>(a, a_stride, b + n, b_stride, c + n, c_stride, depth, accumulate, ahead);
  }
  for (; n < columns; n += W) micro<M, 1>(a, a_stride, b + n, b_stride, c + n, c_stride, depth, accumulate, ahead);
}

// c [rows][columns] (+)= a [rows][depth] b [depth][columns]; columns a multiple of W.
void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
              int64_t rows, int64_t depth, int64_t columns, bool accumulate, Ahead& ahead) {
  int64_t m = 0;
  for (; m + kMicroRows <= rows; m += kMicroRows) {
    micro_columns<kMicroRows>(a + m * a_stride, a_stride, b, b_stride, c + m * c_stride, c_stride, depth, columns,
                              accumulate, ahead);
  }
  a += m * a_stride;
  c += m * c_stride;
  switch (rows - m) {
    case 1: micro_columns<1>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate, ahead); break;
    case 2: micro_columns<2>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate, ahead); break;
    case 3: micro_columns<3>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate, ahead); break;
    case 4: micro_columns<4>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate, ahead); break;
    case 5: micro_columns<5>(a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate, ahead); break;
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

// The arrays of one tile, cut from the thread's scratch. out, sums and max are of the segment that is walked; `all` is what
// the segments before it came to.
struct Tile {
  float *q, *out, *scores, *keys, *values, *sums, *max;
  float *all_out, *all_sum, *all_max;
  uint16_t* widened;  // rows of a chunk of e4m3

  Tile(float* scratch, int64_t rows, int64_t head_dim) {
    q = scratch;
    out = q + rows * head_dim;
    scores = out + rows * head_dim;  // [kBlockRows][kKeyChunk]
    keys = scores + kBlockRows * kKeyChunk;
    values = keys + head_dim * kKeyChunk;
    sums = values + head_dim * kKeyChunk;  // [rows][W]
    max = sums + rows * W;
    all_max = max + rows;
    all_sum = all_max + rows;
    all_out = all_sum + rows;
    widened = reinterpret_cast<uint16_t*>(all_out + rows * head_dim);
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
                         int64_t end, Ahead ahead) {
  const int64_t group = p.q_heads / p.kv_heads, head_dim = p.head_dim;
  for (int64_t m = 0; m < rows; m += kBlockRows) {
    const int64_t n = rows - m < kBlockRows ? rows - m : kBlockRows;
    const int64_t first_query = position + m / group, last_query = position + (m + n - 1) / group;
    if (last_query < begin || first_visible(first_query, p.window) >= end) continue;
    const int64_t count = (last_query + 1 < end ? last_query + 1 : end) - begin, columns = (count + W - 1) / W * W;
    multiply(tile.q + m * head_dim, head_dim, tile.keys, kKeyChunk, tile.scores, kKeyChunk, n, head_dim, columns, false,
             ahead);
    for (int64_t i = 0; i < n; ++i) {
      softmax_row(p, tile, tile.scores + i * kKeyChunk, m + i, position + (m + i) / group, begin, end);
    }
    multiply(tile.scores, kKeyChunk, tile.values, head_dim, tile.out + m * head_dim, head_dim, n, count, head_dim, true,
             ahead);
  }
}

// The softmax over some keys of one row: values summed with weights 2^(score - max), not normalised.
struct Softmax {
  float *max, *sum, *out;

  // Adds what later keys came to. Always one segment at a time in their order, so that the result does not depend on which
  // task walked which segment; one copy of the code, so that the compiler contracts its products one way.
  __attribute__((noinline)) void fold(float later_max, float later_sum, const float* later_out, int64_t head_dim) const {
    if (later_max == kNegInf) return;
    const float top = later_max > *max ? later_max : *max;
    const float keep = *max == kNegInf ? 0.0f : exp2s(*max - top), add = exp2s(later_max - top);
    *sum = *max == kNegInf ? later_sum : *sum * keep + later_sum * add;
    for (int64_t d = 0; d < head_dim; d += W) {
      const V later = load(later_out + d);
      store(out + d, *max == kNegInf ? later : load(out + d) * keep + later * add);
    }
    *max = top;
  }

  // The sink joins the denominator, the output is normalised.
  __attribute__((noinline)) void finish(const float* sink, int64_t head_dim, float* to) const {
    const float sink_max = sink != nullptr ? *sink * kLog2e : kNegInf;
    const float top = sink_max > *max ? sink_max : *max;
    if (top == kNegInf) {  // only where scores are not numbers: a query sees itself
      for (int64_t d = 0; d < head_dim; d += W) store(to + d, V{});
      return;
    }
    const float weight = exp2s(*max - top);
    const float inverse = weight / (weight * *sum + exp2s(sink_max - top));
    for (int64_t d = 0; d < head_dim; d += W) store(to + d, load(out + d) * inverse);
  }
};

INLINE void clear_state(const Tile& tile, int64_t rows, int64_t head_dim) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t d = 0; d < head_dim; d += W) store(tile.out + m * head_dim + d, V{});
    store(tile.sums + m * W, V{});
    tile.max[m] = kNegInf;
  }
}

// Walks the keys [begin, end) of one segment; those before `visible` may lie in stale blocks.
template <typename T>
void extend_segment(const AttentionParams& p, const Tile& tile, int64_t rows, int64_t slot, int32_t kv_head,
                    int64_t position, int64_t visible, int64_t begin, int64_t end) {
  Rows<T> chunks[2];
  const auto find = [&](Rows<T>& keys, int64_t at) {
    keys.find(p, slot, kv_head, at, at > visible ? at : visible, at + kKeyChunk < end ? at + kKeyChunk : end);
  };
  find(chunks[0], begin);
  prefetch_chunk(p, chunks[0], 1);
  for (int current = 0; begin < end; begin += kKeyChunk, current ^= 1) {
    const int64_t chunk_end = begin + kKeyChunk < end ? begin + kKeyChunk : end;
    if (chunk_end < end) find(chunks[current ^ 1], chunk_end);
    const Rows<T>& next = chunks[chunk_end < end ? current ^ 1 : current];
    if constexpr (sizeof(T) == 1) {
      KeyRows bf16, none;
      none.count = 0;  // nothing is left to ask for
      widen_codes(chunks[current], next, 0, p.head_dim, tile.widened, &bf16);
      widen(bf16, p.head_dim, tile.keys, tile.values);
      extend_chunk(p, tile, rows, position, begin, chunk_end, {none, p.head_dim});
    } else {
      widen(chunks[current], p.head_dim, tile.keys, tile.values);
      extend_chunk(p, tile, rows, position, begin, chunk_end, {next, p.head_dim});
    }
  }
}

void extend(const AttentionParams& p, const ExtendTask& task, float* scratch) {
  const int64_t group = p.q_heads / p.kv_heads, head_dim = p.head_dim, rows = (task.q_end - task.q_begin) * group;
  const BatchRow& r = p.rows[task.row];
  const int64_t position = r.kv_len - r.q_len + task.q_begin;  // of the tile's first query
  const int64_t keys_end = position + (task.q_end - task.q_begin);
  const Tile tile(scratch, rows, head_dim);
  const float scale = query_scale(p);
  for (int64_t m = 0; m < rows; ++m) {
    const float* q =
        p.q + (r.q_start + task.q_begin + m / group) * p.q_stride + (task.kv_head * group + m % group) * head_dim;
    for (int64_t d = 0; d < head_dim; d += W) store(tile.q + m * head_dim + d, load(q + d) * scale);
    tile.all_max[m] = kNegInf;
  }
  const int64_t length = segment_keys(p.kv), visible = first_visible(position, p.window);
  const int64_t first = task.segment < 0 ? visible / length : task.segment;
  const int64_t last = task.segment < 0 ? (keys_end - 1) / length : task.segment;
  for (int64_t segment = first; segment <= last; ++segment) {
    const int64_t grid = visible / kKeyChunk * kKeyChunk, from = segment * length;
    const int64_t to = from + length < keys_end ? from + length : keys_end;
    clear_state(tile, rows, head_dim);
    const auto walk = p.kv.format == Format::kF8E4M3 ? extend_segment<uint8_t> : extend_segment<uint16_t>;
    walk(p, tile, rows, r.slot, task.kv_head, position, visible, from > grid ? from : grid, to);
    if (task.segment >= 0) break;
    for (int64_t m = 0; m < rows; ++m) {
      Softmax{tile.all_max + m, tile.all_sum + m, tile.all_out + m * head_dim}.fold(
          tile.max[m], sum_lanes(load(tile.sums + m * W)), tile.out + m * head_dim, head_dim);
    }
  }
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t query = task.q_begin + m / group, head = task.kv_head * group + m % group;
    if (task.segment >= 0) {
      const int64_t at = task.partial_at(task.segment, query, head, p.q_heads);
      task.partials->max[at] = tile.max[m];
      task.partials->sum[at] = sum_lanes(load(tile.sums + m * W));
      float* out = task.partials->out + at * task.partials->out_stride;
      for (int64_t d = 0; d < head_dim; d += W) store(out + d, load(tile.out + m * head_dim + d));
    } else {
      Softmax{tile.all_max + m, tile.all_sum + m, tile.all_out + m * head_dim}.finish(
          p.sinks != nullptr ? p.sinks + head : nullptr, head_dim,
          p.out + (r.q_start + query) * p.out_stride + head * head_dim);
    }
  }
}

// The segments of one query, folded in their order.
void merge_segments(const AttentionParams& p, const ExtendTask& task, int32_t query, KeyRange segments, float* scratch) {
  const BatchRow& r = p.rows[task.row];
  const Partials& parts = *task.partials;
  for (int32_t head = 0; head < p.q_heads; ++head) {
    float max = kNegInf, sum = 0;
    const Softmax all{&max, &sum, scratch};
    for (int64_t segment = segments.begin; segment < segments.end; ++segment) {
      const int64_t at = task.partial_at(segment, query, head, p.q_heads);
      all.fold(parts.max[at], parts.sum[at], parts.out + at * parts.out_stride, p.head_dim);
    }
    all.finish(p.sinks != nullptr ? p.sinks + head : nullptr, p.head_dim,
               p.out + (r.q_start + query) * p.out_stride + int64_t{head} * p.head_dim);
  }
}

}  // namespace
}  // namespace tailrace::cpu
