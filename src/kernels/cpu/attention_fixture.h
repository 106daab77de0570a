// AttentionFixture: a random paged KV pool with shuffled block tables and a step's rows, for tests and the benchmark.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/attention.h"
#include "weights/dequantize.h"

namespace tailrace::cpu {

struct AttentionShape {
  int32_t q_heads = 4, kv_heads = 2, head_dim = 64, block_size = 16, layers = 1;
  int32_t window = 0;
  float softcap = 0.0f;
  bool sinks = false;
  int32_t threads = 2, forced_splits = 0;
  bool fold_decode = false;
  Format format = Format::kBF16;
};

// A row: keys it sees and queries it brings (1 and listed first: decode).
struct RowShape {
  int32_t kv_len, q_len;
};

class AttentionFixture {
 public:
  AttentionFixture(const AttentionShape& shape, const std::vector<RowShape>& row_shapes, uint64_t seed = 1)
      : shape_(shape) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    int32_t longest = 1, num_blocks = 1;
    for (const RowShape& r : row_shapes) {
      const auto slot = static_cast<int32_t>(rows.size());
      rows.push_back({slot, num_tokens, r.q_len, r.kv_len, 1});
      if (r.q_len == 1 && num_decode == slot) ++num_decode;
      num_tokens += r.q_len;
      longest = std::max(longest, r.kv_len);
      num_blocks += (r.kv_len + shape.block_size - 1) / shape.block_size;
    }
    const int64_t stride = (longest + shape.block_size - 1) / shape.block_size;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks) - 1);
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), rng);
    table.assign(rows.size() * static_cast<size_t>(stride), 0);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int32_t b = 0; b * shape.block_size < rows[r].kv_len; ++b) {
        table[r * static_cast<size_t>(stride) + static_cast<size_t>(b)] = free.back();
        free.pop_back();
      }
    }
    const int64_t elements = int64_t{shape.layers} * num_blocks * 2 * shape.kv_heads * shape.block_size * shape.head_dim;
    fill_pool(static_cast<size_t>(elements), [&] { return normal(rng); });
    for (int32_t h = 0; h < shape.q_heads; ++h) sinks.push_back(normal(rng));
    q.resize(static_cast<size_t>(num_tokens) * static_cast<size_t>(width()));
    for (float& x : q) x = normal(rng);
    out.assign(q.size(), -77.0f);
    kv = {pool.data(), num_blocks, shape.layers, shape.kv_heads, shape.head_dim, shape.block_size, shape.window,
          table.data(), stride, shape.format};
    allocate_plan();
  }

  int64_t width() const { return int64_t{shape_.q_heads} * shape_.head_dim; }

  void run(ThreadPool& pool_threads, const AttentionKernels& kernels, int64_t layer = 0) {
    Batch batch{};
    batch.rows = rows.data();
    batch.num_rows = static_cast<int32_t>(rows.size());
    batch.num_decode_rows = num_decode;
    plan_attention(batch,
                   {.kv_heads = shape_.kv_heads, .gqa_ratio = shape_.q_heads / shape_.kv_heads, .window = shape_.window,
                    .threads = shape_.threads, .forced_splits = shape_.forced_splits, .segment_keys = segment_keys(kv),
                    .fold_decode = shape_.fold_decode},
                   &plan);
    run_attention(pool_threads, kernels, plan, params(layer), partials, segments, scratch(), thread_floats_);
  }

  AttentionParams params(int64_t layer) const {
    return {.rows = rows.data(), .kv = kv, .layer = layer, .q_heads = shape_.q_heads, .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim, .window = shape_.window, .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
            .softcap = shape_.softcap, .sinks = shape_.sinks ? sinks.data() : nullptr, .q = q.data(), .q_stride = width(),
            .out = const_cast<float*>(out.data()), .out_stride = width()};
  }

  // Fills the partials with what an unwritten scratch may hold.
  void poison_partials() {
    std::fill(partial_sums_.begin(), partial_sums_.end(), 1e6f);
    std::fill(partial_out_.begin(), partial_out_.end(), 1e9f);
  }

  std::vector<BatchRow> rows;
  int32_t num_decode = 0, num_tokens = 0;
  std::vector<int32_t> table;
  std::vector<std::byte> pool;
  std::vector<float> sinks, q, out;
  KvGroupView kv{};
  AttentionPlan plan;
  Partials partials, segments;

 private:
  template <typename Draw>
  void fill_pool(size_t elements, const Draw& draw) {
    const auto bytes = static_cast<size_t>(format_traits(shape_.format).block_bytes);
    pool.resize(elements * bytes);
    std::vector<uint16_t> noise(1 << 16);
    for (uint16_t& x : noise) {
      x = shape_.format == Format::kF8E4M3 ? float_to_e4m3(draw()) : bf16_round(draw());  // its low byte lies first
    }
    for (size_t i = 0; i < elements; ++i) {
      std::memcpy(&pool[i * bytes], &noise[(i * 40503u + (i >> 16)) & 0xffff], bytes);
    }
  }

  void allocate_plan() {
    const auto count = static_cast<int64_t>(rows.size());
    const auto entries = static_cast<size_t>(max_splits(count, shape_.threads, shape_.forced_splits) * shape_.q_heads);
    first_split_.assign(static_cast<size_t>(count) + 1, 0);
    first_tile_.assign(static_cast<size_t>(count) + 1, 0);
    plan.first_split = first_split_.data();
    plan.first_tile = first_tile_.data();
    const auto parts = static_cast<size_t>(kMaxSegments * kMaxSplitQueries * shape_.q_heads);
    partial_sums_.resize(2 * (entries + parts));
    partial_out_.resize((entries + parts) * static_cast<size_t>(shape_.head_dim));
    partials = {partial_sums_.data(), partial_sums_.data() + entries, partial_out_.data(), shape_.head_dim};
    float* rest = partial_sums_.data() + 2 * entries;
    segments = {rest, rest + parts, partial_out_.data() + entries * static_cast<size_t>(shape_.head_dim), shape_.head_dim};
    thread_floats_ = attention_thread_floats(shape_.head_dim, shape_.q_heads, shape_.q_heads / shape_.kv_heads);
    scratch_.resize(static_cast<size_t>(thread_floats_ * shape_.threads) + 16);
  }

  float* scratch() {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch_.data()) + 63) / 64 * 64);
  }

  AttentionShape shape_;
  std::vector<int32_t> first_split_, first_tile_;
  std::vector<float> partial_sums_, partial_out_, scratch_;
  int64_t thread_floats_ = 0;
};

}  // namespace tailrace::cpu
