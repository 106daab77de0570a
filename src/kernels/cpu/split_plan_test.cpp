#include "kernels/cpu/split_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tailrace::cpu {
namespace {

std::vector<BatchRow> rows_of(const std::vector<int32_t>& kv_lens) {
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < kv_lens.size(); ++i) {
    rows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(i), 1, kv_lens[i], 1});
  }
  return rows;
}

std::vector<int32_t> counts(const std::vector<int32_t>& kv_lens, SplitInput input) {
  const auto rows = rows_of(kv_lens);
  std::vector<int32_t> first(rows.size() + 1, -1);
  input.rows = rows.data();
  input.num_decode_rows = static_cast<int32_t>(rows.size());
  const int32_t total = plan_splits(input, first.data());
  EXPECT_EQ(total, first.back());
  EXPECT_LE(total, max_splits(input.num_decode_rows, input.threads, input.forced));
  std::vector<int32_t> result;
  for (size_t i = 0; i + 1 < first.size(); ++i) result.push_back(first[i + 1] - first[i]);
  return result;
}

TEST(SplitPlan, short_rows_are_not_cut) {
  EXPECT_EQ(counts({1, 33, 64}, {.threads = 8}), (std::vector<int32_t>{1, 1, 1}));
}

TEST(SplitPlan, an_idle_row_has_no_split) {
  EXPECT_EQ(counts({500, 0, 300}, {.threads = 1}), (std::vector<int32_t>{5, 0, 3}));
  EXPECT_EQ(counts({500, 0, 300}, {.threads = 1, .forced = 4}), (std::vector<int32_t>{4, 0, 4}));
}

TEST(SplitPlan, a_lone_long_row_feeds_every_thread) {
  const auto splits = counts({192 * 1024}, {.threads = 64});
  EXPECT_GE(splits[0] * 2, 64 * 4);
}

TEST(SplitPlan, many_equal_rows_need_no_split) {
  for (int32_t count : counts(std::vector<int32_t>(64, 2000), {.threads = 4})) EXPECT_EQ(count, 1);
}

TEST(SplitPlan, a_row_much_longer_than_the_others_is_cut) {
  const auto splits = counts({100, 100, 100, 20000}, {.threads = 4});
  EXPECT_EQ(splits[0], 1);
  EXPECT_GE(splits[3], 16);
}

TEST(SplitPlan, a_window_counts_not_the_context) {
  const auto splits = counts({100000}, {.window = 512, .threads = 2});
  EXPECT_EQ(splits, counts({512}, {.threads = 2}));
  EXPECT_LE(splits[0], 8);
}

TEST(SplitPlan, forced_counts_hold_for_all_rows) {
  EXPECT_EQ(counts({1, 5000}, {.threads = 2, .forced = 8}), (std::vector<int32_t>{8, 8}));
}

TEST(SplitPlan, random_steps_stay_within_the_bound_and_ranges_tile_the_keys) {
  std::mt19937_64 rng(5);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int32_t> kv_lens(1 + rng() % 40);
    for (int32_t& len : kv_lens) len = 1 + static_cast<int32_t>(rng() % (trial % 2 ? 300 : 100000));
    const SplitInput input{.window = trial % 3 ? 0 : 1 + static_cast<int32_t>(rng() % 2000),
                           .threads = 1 + static_cast<int32_t>(rng() % 64),
                           .forced = trial % 5 ? 0 : 1 + static_cast<int32_t>(rng() % 16)};
    const auto splits = counts(kv_lens, input);
    for (size_t r = 0; r < kv_lens.size(); ++r) {
      const int64_t first = input.window > 0 ? std::max<int64_t>(0, kv_lens[r] - input.window) : 0;
      int64_t at = first;
      for (int32_t i = 0; i < splits[r]; ++i) {
        const KeyRange range = split_range(kv_lens[r], input.window, splits[r], i);
        EXPECT_LE(range.begin, range.end);
        if (range.begin == range.end) continue;
        EXPECT_EQ(range.begin, at);
        at = range.end;
      }
      EXPECT_EQ(at, kv_lens[r]);
    }
  }
}

}  // namespace
}  // namespace tailrace::cpu
