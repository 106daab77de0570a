// One attention problem in a paged pool on the device, with the float64 answer for any of its query rows.
#pragma once

#include <string>

#include "batch/batch.h"
#include "kernels/cuda/gpu_workbench.h"
#include "kernels/cuda/kv_layout.h"

namespace tailrace::cuda::workbench {

struct AttentionCase {
  const char* name;
  int q_heads, kv_heads, dim, window;
  bool sinks;
  std::vector<int> lens;              // kv_len of each row
  double peer_us = 0, goal_us = 0;    // the best paged engine and the goal of TARGETS, or 0
  std::vector<int> q_lens = {};       // empty: 1 each (decode)
  int64_t min_blocks = 0;             // of the pool, which the rows then use sparsely: offsets beyond 32 bits

  int rows() const { return static_cast<int>(lens.size()); }
  int q_len(int row) const { return q_lens.empty() ? 1 : q_lens[row]; }
  int tokens() const {
    int n = 0;
    for (int r = 0; r < rows(); ++r) n += q_len(r);
    return n;
  }
  int group() const { return q_heads / kv_heads; }
  // The first block that a row's first query sees.
  int first_block(int row) const { return window > 0 ? std::max(0, lens[row] - q_len(row) + 1 - window) / kBlockTokens : 0; }
};

inline int blocks_of(int len) { return (len + kBlockTokens - 1) / kBlockTokens; }

// Shuffled blocks and slots; `layers` pools side by side so that replays find a cold cache. Block 0 is NaN: what lies before
// a window points at it, and nobody may read it. In a row's own blocks, tokens that none of its queries sees are the largest
// value, as the block's last user may have left them: in bf16 their scores overflow, their weight must be 0.
struct AttentionProblem {
  const AttentionCase& c;
  bool fp8;  // the pool is e4m3: values are rounded to that before, so that kernels are held to what they read
  int layers, rows, stride;
  int64_t num_blocks, layer_bytes;
  Buffer<__nv_bfloat16> q, out;
  Buffer<unsigned char> pool;
  Buffer<int32_t> table;
  Buffer<BatchRow> batch;
  Buffer<float> sinks;
  std::vector<int64_t> place;  // of a block in pool.host
  float of_code[256];          // what each e4m3 is

  static int64_t total_blocks(const AttentionCase& c) {
    int64_t n = 1;
    for (int r = 0; r < c.rows(); ++r) n += blocks_of(c.lens[r]) - c.first_block(r);
    return std::max(n, c.min_blocks);
  }

  AttentionProblem(const AttentionCase& c, int layers, uint64_t seed, bool fp8 = false)
      : c(c), fp8(fp8), layers(layers), rows(c.rows()),
        stride(blocks_of(*std::max_element(c.lens.begin(), c.lens.end())) + 1), num_blocks(total_blocks(c)),
        layer_bytes(num_blocks * block_bytes()),
        q(size_t{1} * c.tokens() * c.q_heads * c.dim), out(q.count), pool(layers * layer_bytes, false),
        table(size_t{1} * rows * stride), batch(rows), sinks(c.q_heads) {
    fill_normal(q.device, q.count, seed);
    if (fp8) {
      fill_normal(reinterpret_cast<__nv_fp8_e4m3*>(pool.device), pool.count, seed + 1);
    } else {
      fill_normal(reinterpret_cast<__nv_bfloat16*>(pool.device), pool.count / 2, seed + 1);
    }
    for (int l = 0; l < layers; ++l) GPU_CHECK(cudaMemset(pool.device + l * layer_bytes, 0xff, block_bytes()));
    for (int code = 0; code < 256; ++code) {
      __nv_fp8_e4m3 value;
      value.__x = static_cast<__nv_fp8_storage_t>(code);
      of_code[code] = float(value);
    }
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids(num_blocks - 1);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i + 1);
    std::shuffle(ids.begin(), ids.end(), random);
    size_t next = 0;
    int q_start = 0;
    for (int r = 0; r < rows; ++r) {
      const int slot = rows - 1 - r;
      for (int b = c.first_block(r); b < blocks_of(c.lens[r]); ++b) table.host[size_t{1} * slot * stride + b] = ids[next++];
      batch.host[r] = {slot, q_start, c.q_len(r), c.lens[r], 1};
      q_start += c.q_len(r);
    }
    for (float& s : sinks.host) s = std::normal_distribution<float>(0, 2)(random);
    for (int r = 0; r < rows; ++r) poison(r, blocks_of(c.lens[r]) - 1, c.lens[r] % kBlockTokens, kBlockTokens);
    for (int r = 0; r < rows && c.window > 0; ++r) {
      poison(r, c.first_block(r), 0, std::max(0, c.lens[r] - c.q_len(r) + 1 - c.window) % kBlockTokens);
    }
    table.upload(), batch.upload(), sinks.upload();
  }

  // Tokens [begin, end) of a row's block in every layer, none when begin is 0 and end the whole block.
  void poison(int row, int block, int begin, int end) {
    if (begin >= end || end - begin == kBlockTokens) return;
    const int64_t id = table.host[size_t{1} * batch.host[row].slot * stride + block];
    const int64_t token = int64_t{64} * value_bytes();  // bytes of 64 dims
    for (int l = 0; l < layers; ++l) {
      unsigned char* at = pool.device + l * layer_bytes + id * block_bytes() + begin * token;
      const int64_t runs = block_bytes() / (kBlockTokens * token);
      GPU_CHECK(cudaMemset2D(at, kBlockTokens * token, fp8 ? 0x7e : 0x7f, (end - begin) * token, runs));
    }
  }

  int value_bytes() const { return fp8 ? 1 : 2; }
  int64_t block_bytes() const { return c.kv_heads * kv_tile_values(padded_dim(c.dim)) * value_bytes(); }
  void* layer_pool(int layer) const { return pool.device + layer * layer_bytes; }

  // Layer 0's blocks that the rows use, to the host one behind the other.
  void download_pool() {
    place.assign(num_blocks, -1);
    pool.host.clear();
    for (int r = 0; r < rows; ++r) {
      for (int b = c.first_block(r); b < blocks_of(c.lens[r]); ++b) {
        const int64_t id = table.host[size_t{1} * batch.host[r].slot * stride + b], at = static_cast<int64_t>(pool.host.size());
        place[id] = at / block_bytes();
        pool.host.resize(at + block_bytes());
        GPU_CHECK(cudaMemcpy(pool.host.data() + at, pool.device + id * block_bytes(), block_bytes(), cudaMemcpyDeviceToHost));
      }
    }
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.dim)); }

  // Relative error of head h of row r's token t against float64, from layer 0; the buffers must have been downloaded.
  double error_of(int r, int t, int h, float softcap) const {
    const int position = c.lens[r] - c.q_len(r) + t, slot = batch.host[r].slot;
    const size_t at = (size_t{1} * (batch.host[r].q_start + t) * c.q_heads + h) * c.dim;
    const int low = c.window > 0 ? std::max(0, position + 1 - c.window) : 0;
    std::vector<double> scores(position + 1), o(c.dim, 0.0);
    double top = c.sinks ? sinks.host[h] : -INFINITY;
    auto tile = [&](int key) {
      const int64_t block = table.host[size_t{1} * slot * stride + key / kBlockTokens];
      return pool.host.data() + value_bytes() * kv_tile_offset(num_blocks, c.kv_heads, padded_dim(c.dim), 0, place[block],
                                                               h / c.group());
    };
    auto stored = [&](const unsigned char* half, int key, int d) -> double {  // of a tile's keys or values
      if (fp8) return of_code[half[swizzled_fp8(key % kBlockTokens, d)]];
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(half)[swizzled(key % kBlockTokens, d)]);
    };
    for (int key = low; key <= position; ++key) {
      double s = 0;
      const unsigned char* k = tile(key);
      for (int d = 0; d < c.dim; ++d) {
        s += double(__bfloat162float(q.host[at + d])) * stored(k, key, d);
      }
      s *= 1.0 / std::sqrt(double(c.dim));
      if (softcap > 0) s = softcap * std::tanh(s / softcap);
      scores[key] = s, top = std::max(top, s);
    }
    double sum = c.sinks ? std::exp(sinks.host[h] - top) : 0;
    for (int key = low; key <= position; ++key) {
      const double w = std::exp(scores[key] - top);
      sum += w;
      const unsigned char* v = tile(key) + kBlockTokens * padded_dim(c.dim) * value_bytes();
      for (int d = 0; d < c.dim; ++d) o[d] += w * stored(v, key, d);
    }
    double error = 0, norm = 0;
    for (int d = 0; d < c.dim; ++d) {
      const double got = __bfloat162float(out.host[at + d]), want = o[d] / sum;
      error += (got - want) * (got - want), norm += want * want;
    }
    const double relative = std::sqrt(error / std::max(norm, 1e-30));
    return std::isnan(relative) ? INFINITY : relative;
  }

  // The worst of `samples` random (row, token, head) and of every row's first and last token.
  double worst_error(float softcap, int samples, uint64_t seed) {
    q.download(), out.download(), download_pool();
    double worst = 0;
    std::mt19937_64 random(seed);
    for (int r = 0; r < rows; ++r) {
      for (int h = 0; h < c.q_heads; ++h) {
        worst = std::max({worst, error_of(r, 0, h, softcap), error_of(r, c.q_len(r) - 1, h, softcap)});
      }
    }
    for (int i = 0; i < samples; ++i) {
      const int r = static_cast<int>(random() % rows);
      worst = std::max(worst, error_of(r, static_cast<int>(random() % c.q_len(r)), static_cast<int>(random() % c.q_heads), softcap));
    }
    return worst;
  }
};

}  // namespace tailrace::cuda::workbench
