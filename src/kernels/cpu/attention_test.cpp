#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <random>

#include "base/test_fault.h"
#include "kernels/cpu/attention_fixture.h"
#include "kernels/kv_address.h"
#include "kernels/reference/ops.h"

namespace tailrace::cpu {
namespace {

std::vector<const AttentionKernels*> all_kernels() {
  std::vector<const AttentionKernels*> kernels{attention_portable()};
#if defined(__x86_64__)
  if (attention_avx2() != nullptr && __builtin_cpu_supports("avx2")) kernels.push_back(attention_avx2());
  if (attention_avx512() != nullptr && __builtin_cpu_supports("avx512bw")) kernels.push_back(attention_avx512());
#endif
  return kernels;
}

// Largest difference from the float64 reference over all tokens and heads.
double error_of(const AttentionFixture& f, const AttentionShape& shape, int64_t layer = 0) {
  const AttentionParams p = f.params(layer);
  AttentionBlock block{.q_heads = shape.q_heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .group = 0,
                       .layer = static_cast<int>(layer), .window = shape.window, .scale = p.scale,
                       .softcap = shape.softcap, .sinks = p.sinks};
  std::vector<float> expected(static_cast<size_t>(shape.head_dim));
  double worst = 0;
  for (const BatchRow& row : f.rows) {
    for (int32_t t = 0; t < row.q_len; ++t) {
      for (int32_t h = 0; h < shape.q_heads; ++h) {
        const size_t at = static_cast<size_t>((row.q_start + t) * f.width() + h * shape.head_dim);
        reference::attend(block, f.kv, row.slot, row.kv_len - row.q_len + t, h, f.q.data() + at, expected.data());
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          const double difference = std::abs(expected[static_cast<size_t>(d)] - f.out[at + static_cast<size_t>(d)]);
          worst = std::isfinite(difference) ? std::max(worst, difference) : HUGE_VAL;
        }
      }
    }
  }
  return worst;
}

constexpr double kTolerance = 2e-5;  // fp32 sums of values of size 1

void expect_equal(const AttentionShape& shape, const std::vector<RowShape>& rows, uint64_t seed = 1) {
  ThreadPool pool(shape.threads);
  for (const AttentionKernels* kernels : all_kernels()) {
    AttentionFixture f(shape, rows, seed);
    f.poison_partials();
    f.run(pool, *kernels);
    EXPECT_LT(error_of(f, shape), kTolerance)
        << kernels->name << " heads " << shape.q_heads << "/" << shape.kv_heads << " dim " << shape.head_dim
        << " window " << shape.window << " rows " << rows.size() << " first kv_len " << rows[0].kv_len << " q_len "
        << rows[0].q_len;
  }
}

// What the pool holds, whatever rounded it, is what the reference reads: the bound is that of bf16.
void expect_equal_from_e4m3(AttentionShape shape, const std::vector<RowShape>& rows, uint64_t seed = 1) {
  shape.format = Format::kF8E4M3;
  expect_equal(shape, rows, seed);
}

TEST(Attention, one_token_and_block_boundaries) {
  for (int32_t kv_len : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257}) {
    expect_equal({}, {{kv_len, 1}});
    expect_equal({}, {{kv_len, kv_len}});
    if (kv_len > 2) expect_equal({}, {{kv_len, 2}});
  }
}

TEST(Attention, every_gqa_ratio) {
  for (int32_t ratio = 1; ratio <= 16; ++ratio) {
    expect_equal({.q_heads = 2 * ratio, .kv_heads = 2, .head_dim = 32}, {{77, 1}, {33, 1}, {40, 23}});
  }
  expect_equal({.q_heads = 128, .kv_heads = 1, .head_dim = 16}, {{77, 1}, {40, 3}});
}

TEST(Attention, every_head_dim) {
  for (int32_t dim = 16; dim <= 512; dim += dim < 160 ? 16 : 112) {
    expect_equal({.q_heads = 3, .kv_heads = 1, .head_dim = dim}, {{70, 1}, {35, 20}});
  }
  expect_equal({.q_heads = 2, .kv_heads = 1, .head_dim = 512}, {{70, 1}, {35, 20}});
}

TEST(Attention, windows_on_both_paths) {
  for (int32_t window : {1, 2, 15, 16, 17, 64, 65, 100}) {
    expect_equal({.head_dim = 32, .window = window}, {{200, 1}, {window, 1}, {window + 1, 1}, {180, 90}, {70, 70}});
  }
}

TEST(Attention, sinks_and_softcap) {
  const std::vector<RowShape> rows{{300, 1}, {1, 1}, {90, 70}};
  expect_equal({.q_heads = 6, .kv_heads = 2, .head_dim = 32, .sinks = true}, rows);
  expect_equal({.q_heads = 6, .kv_heads = 2, .head_dim = 32, .softcap = 2.0f}, rows);
  expect_equal({.head_dim = 32, .window = 50, .softcap = 5.0f, .sinks = true, .forced_splits = 3}, rows);
}

TEST(Attention, forced_splits_may_be_empty) {
  for (int32_t splits : {1, 2, 3, 8, 16}) {
    expect_equal({.head_dim = 32, .forced_splits = splits}, {{1, 1}, {65, 1}, {130, 1}, {500, 1}});
    expect_equal({.head_dim = 32, .window = 70, .sinks = true, .forced_splits = splits}, {{9, 1}, {500, 1}});
  }
}

TEST(Attention, folded_decode_rows_give_the_same) {
  expect_equal({.q_heads = 6, .kv_heads = 2, .head_dim = 32, .window = 40, .fold_decode = true},
               {{100, 1}, {7, 1}, {64, 10}});
}

TEST(Attention, random_mixed_batches) {
  std::mt19937_64 rng(11);
  for (int trial = 0; trial < 25; ++trial) {
    const auto pick = [&](int32_t low, int32_t high) {
      return low + static_cast<int32_t>(rng() % static_cast<uint64_t>(high - low + 1));
    };
    AttentionShape shape{.kv_heads = pick(1, 4), .head_dim = 16 * pick(1, 6), .block_size = pick(0, 1) ? 16 : 32,
                         .layers = 1, .window = pick(0, 1) ? pick(1, 150) : 0, .softcap = pick(0, 3) ? 0.0f : 10.0f,
                         .sinks = pick(0, 1) == 1, .threads = pick(1, 3), .forced_splits = pick(0, 3) ? 0 : pick(1, 9)};
    shape.q_heads = shape.kv_heads * pick(1, 8);
    std::vector<RowShape> rows;
    for (int32_t i = pick(0, 5); i > 0; --i) rows.push_back({pick(1, 700), 1});
    for (int32_t i = pick(rows.empty() ? 1 : 0, 2); i > 0; --i) {
      const int32_t kv_len = pick(2, 250);
      rows.push_back({kv_len, pick(2, kv_len)});
    }
    expect_equal(shape, rows, rng());
  }
}

void expect_equal_in_any_chunking(const AttentionShape& shape) {
  ThreadPool pool(2);
  AttentionFixture whole(shape, {{333, 333}});
  whole.run(pool, attention_kernels());
  for (int32_t chunk : {2, 7, 64, 100, 200}) {
    for (int32_t end = chunk; end <= 333; end += chunk) {
      AttentionFixture part(shape, {{333, 333}});
      part.rows[0] = {0, 0, chunk, end, 1};
      std::copy_n(whole.q.data() + (end - chunk) * whole.width(), chunk * whole.width(), part.q.data());
      part.run(pool, attention_kernels());
      EXPECT_TRUE(std::equal(part.out.begin(), part.out.begin() + chunk * whole.width(),
                             whole.out.begin() + (end - chunk) * whole.width()))
          << chunk << " " << end;
    }
  }
}

TEST(AttentionE4m3, every_code_is_read_as_its_value) {
  const AttentionShape shape{.q_heads = 1, .kv_heads = 1, .head_dim = 128, .format = Format::kF8E4M3};
  ThreadPool pool(1);
  for (const AttentionKernels* kernels : all_kernels()) {
    AttentionFixture f(shape, {{1, 1}, {1, 1}});  // one key: the output is its value
    for (int32_t row : {0, 1}) {
      const int64_t at = kv_offset(f.kv, 0, f.table[static_cast<size_t>(row)], 1, 0);
      auto* codes = reinterpret_cast<uint8_t*>(f.pool.data()) + at;
      for (int32_t d = 0; d < 128; ++d) codes[d] = static_cast<uint8_t>(128 * row + (d == 127 ? 0 : d));  // no NaN
      f.run(pool, *kernels);
      for (size_t d = 0; d < 127; ++d) {
        const float got = f.out[static_cast<size_t>(row) * 128 + d];
        EXPECT_FLOAT_EQ(got, e4m3_to_float(codes[d])) << kernels->name << " " << d;
      }
    }
  }
}

TEST(AttentionE4m3, boundaries_gqa_ratios_head_dims) {
  for (int32_t kv_len : {1, 15, 16, 17, 63, 64, 65, 129, 257}) {
    expect_equal_from_e4m3({}, {{kv_len, 1}});
    expect_equal_from_e4m3({}, {{kv_len, kv_len}});
  }
  for (int32_t ratio : {1, 3, 4, 5, 8, 16}) {
    expect_equal_from_e4m3({.q_heads = 2 * ratio, .kv_heads = 2, .head_dim = 32}, {{77, 1}, {33, 1}, {40, 23}});
  }
  for (int32_t dim : {16, 48, 80, 128, 256, 512}) {
    expect_equal_from_e4m3({.q_heads = 3, .kv_heads = 1, .head_dim = dim}, {{70, 1}, {35, 20}});
  }
}

TEST(AttentionE4m3, windows_sinks_softcap_splits_segments) {
  for (int32_t window : {1, 17, 64, 100}) {
    expect_equal_from_e4m3({.head_dim = 32, .window = window}, {{200, 1}, {window + 1, 1}, {180, 90}, {70, 70}});
  }
  const std::vector<RowShape> rows{{300, 1}, {1, 1}, {90, 70}};
  expect_equal_from_e4m3({.q_heads = 6, .kv_heads = 2, .head_dim = 32, .sinks = true}, rows);
  expect_equal_from_e4m3({.head_dim = 32, .window = 50, .softcap = 5.0f, .sinks = true, .forced_splits = 3}, rows);
  expect_equal_from_e4m3({.q_heads = 9, .kv_heads = 3}, {{4000, 1}, {70, 1}, {2500, 3}, {30, 5}, {1025, 2}});
}

TEST(AttentionE4m3, an_answer_is_bitwise_equal_in_any_chunking_of_its_prompt) {
  expect_equal_in_any_chunking({.q_heads = 6, .kv_heads = 2, .window = 100, .format = Format::kF8E4M3});
}

TEST(Attention, layers_lie_apart) {
  const AttentionShape shape{.head_dim = 32, .layers = 3};
  ThreadPool pool(1);
  AttentionFixture f(shape, {{50, 1}, {40, 40}});
  f.run(pool, attention_kernels(), 2);
  EXPECT_LT(error_of(f, shape, 2), kTolerance);
  EXPECT_GT(error_of(f, shape, 1), 0.01);
}

TEST(Attention, same_batch_twice_is_bitwise_equal_and_extend_for_any_thread_count) {
  const std::vector<RowShape> rows{{900, 1}, {300, 1}, {400, 333}};
  std::vector<std::vector<float>> decode, all;
  for (int32_t threads : {1, 2, 2, 3}) {
    const AttentionShape shape{.q_heads = 9, .kv_heads = 3, .threads = threads, .forced_splits = 4};
    ThreadPool pool(threads);
    AttentionFixture f(shape, rows);
    f.run(pool, attention_kernels());
    all.push_back(f.out);
  }
  for (const auto& out : all) EXPECT_EQ(out, all[0]);
  ThreadPool pool(2);
  for (int run = 0; run < 2; ++run) {
    AttentionFixture f({.q_heads = 9, .kv_heads = 3}, rows);
    f.run(pool, attention_kernels());
    decode.push_back(f.out);
  }
  EXPECT_EQ(decode[0], decode[1]);
}

TEST(Attention, a_rows_answer_is_bitwise_equal_in_any_chunking_of_its_prompt) {
  expect_equal_in_any_chunking({.q_heads = 6, .kv_heads = 2, .window = 100});
}

// Few queries over many keys: their segments are tasks of their own.
TEST(Attention, segments_walked_apart_give_the_bits_of_segments_walked_together) {
  for (int32_t window : {0, 1500}) {
    const AttentionShape shape{.q_heads = 6, .kv_heads = 2, .head_dim = 48, .window = window, .sinks = window > 0};
    constexpr int32_t kKeys = 3100;
    ThreadPool pool(2);
    for (const AttentionKernels* kernels : all_kernels()) {
      AttentionFixture whole(shape, {{kKeys, 70}});
      whole.run(pool, *kernels);
      ASSERT_EQ(whole.plan.num_segments, 0);
      EXPECT_LT(error_of(whole, shape), kTolerance) << kernels->name;
      for (int32_t chunk : {2, 5, 16}) {
        const int32_t end = kKeys - 3;
        AttentionFixture part(shape, {{kKeys, 70}});
        part.rows[0] = {0, 0, chunk, end, 1};
        const int64_t at = (70 - 3 - chunk) * whole.width();
        std::copy_n(whole.q.data() + at, chunk * whole.width(), part.q.data());
        part.poison_partials();
        part.run(pool, *kernels);
        ASSERT_GT(part.plan.num_segments, 1);
        EXPECT_TRUE(std::equal(part.out.begin(), part.out.begin() + chunk * whole.width(), whole.out.begin() + at))
            << kernels->name << " window " << window << " chunk " << chunk;
      }
    }
  }
}

TEST(Attention, few_queries_over_many_keys_beside_decode_rows) {
  expect_equal({.q_heads = 9, .kv_heads = 3}, {{4000, 1}, {70, 1}, {2500, 3}, {30, 5}, {1025, 2}});
  expect_equal({.q_heads = 9, .kv_heads = 3, .window = 1030, .sinks = true}, {{4000, 1}, {2500, 3}, {1031, 7}});
  expect_equal({.q_heads = 8, .kv_heads = 1, .head_dim = 16, .softcap = 5.0f, .threads = 3}, {{20000, 9}, {3000, 7}});
}

// Hazard 8: a window of W counts the query itself, on both paths.
TEST(AttentionHazards, window_off_by_one_is_noticed) {
  const AttentionShape shape{.head_dim = 32, .window = 17};
  ThreadPool pool(2);
  for (const RowShape& row : {RowShape{90, 1}, RowShape{90, 40}}) {
    AttentionFixture f(shape, {row});
    f.run(pool, attention_kernels());
    EXPECT_LT(error_of(f, shape), kTolerance);
    const ScopedTestFault fault(Fault::kWindowOffByOne);
    f.run(pool, attention_kernels());
    EXPECT_GT(error_of(f, shape), 100 * kTolerance);
  }
}

// Hazard 9: a split without keys contributes the identity, whatever its scratch held.
TEST(AttentionHazards, garbage_of_an_empty_split_is_noticed) {
  const AttentionShape shape{.head_dim = 32, .forced_splits = 8};
  ThreadPool pool(2);
  AttentionFixture f(shape, {{100, 1}});
  f.poison_partials();
  f.run(pool, attention_kernels());
  EXPECT_LT(error_of(f, shape), kTolerance);
  const ScopedTestFault fault(Fault::kMergeEmptySplit);
  f.poison_partials();
  f.run(pool, attention_kernels());
  EXPECT_GT(error_of(f, shape), 100 * kTolerance);
}

TEST(AttentionMerge, identities_weigh_nothing_and_the_sink_joins_once) {
  const float max[] = {-HUGE_VALF, 1.0f, -HUGE_VALF}, sum[] = {0, 2.0f, 0}, out[] = {1e30f, 6.0f, -1e30f};
  float merged = 0;
  merge_partials(max, sum, out, 3, 1, 1, nullptr, 1, &merged);
  EXPECT_FLOAT_EQ(merged, 3.0f);
  const float sink = 1.0f / 1.44269504f;  // 1 in log2 units: as much as one key at the maximum
  merge_partials(max, sum, out, 3, 1, 1, &sink, 1, &merged);
  EXPECT_FLOAT_EQ(merged, 2.0f);
  merge_partials(max, sum, out, 1, 1, 1, nullptr, 1, &merged);
  EXPECT_EQ(merged, 0.0f);
}

// Hazard 13: 4 GB of pool and more.
TEST(AttentionHazards, addresses_pass_2_to_the_31_elements) {
  KvGroupView kv{};
  kv.num_blocks = 1 << 20;
  kv.num_layers = 32;
  kv.kv_heads = 8;
  kv.head_dim = 128;
  kv.block_size = 16;
  const int64_t expected = (((31ll * (1 << 20) + 777777) * 2 + 1) * 8 + 5) * 16 * 128;
  EXPECT_EQ(kv_offset(kv, 31, 777777, 1, 5), expected);
  EXPECT_GT(expected, int64_t{1} << 31);
  const ScopedTestFault fault(Fault::kIndex32Bit);
  EXPECT_NE(kv_offset(kv, 31, 777777, 1, 5), expected);
}

// The kernels read there: a row whose block lies behind the first 2^31 elements of a sparse pool.
void expect_rows_far_behind(Format format) {
  const AttentionShape shape{.head_dim = 64, .format = format};
  const int64_t value_bytes = format_traits(format).block_bytes;
  ThreadPool pool(1);
  AttentionFixture f(shape, {{40, 1}, {30, 20}});
  f.run(pool, attention_kernels());
  const std::vector<float> expected = f.out;
  const int64_t block_elements = 2ll * shape.kv_heads * shape.block_size * shape.head_dim;
  const int64_t far = (int64_t{1} << 31) / block_elements + 5;
  const auto bytes = static_cast<size_t>((far + f.kv.num_blocks) * block_elements) * value_bytes;
  void* sparse = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (sparse == MAP_FAILED) GTEST_SKIP() << "no address space for a sparse pool of " << bytes << " bytes";
  std::copy(f.pool.begin(), f.pool.end(), static_cast<std::byte*>(sparse) + far * block_elements * value_bytes);
  for (int32_t& block : f.table) block += static_cast<int32_t>(far);
  f.kv.pool = sparse;
  f.kv.num_blocks += far;
  f.run(pool, attention_kernels());
  EXPECT_EQ(f.out, expected);
  munmap(sparse, bytes);
}
TEST(AttentionHazards, rows_behind_2_to_the_31_elements) { expect_rows_far_behind(Format::kBF16); }
TEST(AttentionHazards, rows_behind_2_to_the_31_elements_of_e4m3) { expect_rows_far_behind(Format::kF8E4M3); }

}  // namespace
}  // namespace tailrace::cpu
