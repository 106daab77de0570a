#include "batch/slab_writer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tailrace {
namespace {

// Device tables in host memory, poisoned, for apply_slab.
struct Tables {
  static constexpr int kRows = 4, kStride = 32, kLog = 256;
  std::vector<int32_t> blocks[2] = {std::vector<int32_t>(kRows * kStride, -7), std::vector<int32_t>(kRows * kStride, -7)};
  std::vector<BatchRow> rows = std::vector<BatchRow>(kRows);
  std::vector<TokenId> log = std::vector<TokenId>(kRows * kLog, -7);
  std::vector<RowSampling> sampling = std::vector<RowSampling>(kRows);
  std::vector<TokenId> bias_ids = std::vector<TokenId>(kRows * kMaxLogitBias, -7);
  std::vector<float> bias_values = std::vector<float>(kRows * kMaxLogitBias, -7);
  std::vector<TokenId> stop_ids = std::vector<TokenId>(kRows * kMaxStopTokenIds, -7);
  std::vector<int32_t> stopped = std::vector<int32_t>(kRows, 1);
  PatchTargets targets() {
    PatchTargets t{};
    t.rows = rows.data();
    for (int g = 0; g < 2; ++g) {
      t.block_table[g] = blocks[g].data();
      t.table_stride[g] = kStride;
    }
    t.state = {log.data(), kLog, sampling.data(), bias_ids.data(), bias_values.data(), stop_ids.data(),
               stopped.data()};
    return t;
  }
};

SlabLimits limits() { return {.max_rows = 4, .num_groups = 2, .max_log_patch_tokens = 300, .max_patch_blocks = 128}; }

StepPlan example_plan() {
  auto request = std::make_shared<Request>();
  request->prompt_ids = {1, 2, 3};
  request->min_tokens = 2;
  request->stop_token_ids = {9, 11};
  request->sampling.temperature = 0.5f;
  request->sampling.seed = 42;
  request->sampling.logit_bias = {{5, -100.0f}, {6, 2.5f}};
  StepPlan plan{.step = 3};
  plan.rows = {{.request_id = 1, .slot = 2, .computed_len = 7, .q_len = 1, .samples = true},
               {.request_id = 2, .slot = 1, .computed_len = 0, .q_len = 3, .samples = false, .state_from = kZeroState,
                .state_save = 5}};
  plan.num_decode_rows = 1;
  plan.num_tokens = 4;
  plan.starts = {{1, request}};
  plan.block_patches = {{.group = 0, .slot = 1, .first_index = 0, .blocks = {3, 4}},
                        {.group = 1, .slot = 2, .first_index = 5, .blocks = {8}}};
  plan.log_patches = {{.slot = 1, .first = 0, .ids = {1, 2, 3}}};
  return plan;
}

TEST(SlabWriter, rows_and_patches_arrive_as_planned) {
  std::vector<std::byte> slab(slab_capacity(limits()));
  write_slab(example_plan(), 7, slab.data(), slab.size());
  const auto* rows = reinterpret_cast<const BatchRow*>(slab.data() + slab_rows_offset());
  EXPECT_EQ(rows[0].slot, 2);
  EXPECT_EQ(rows[0].kv_len, 8);
  EXPECT_EQ(rows[0].samples, 1);
  EXPECT_EQ(rows[1].q_start, 1);
  EXPECT_EQ(rows[1].q_len, 3);
  EXPECT_EQ(rows[1].samples, 0);
  EXPECT_EQ(rows[0].state_from, 0);
  EXPECT_EQ(rows[1].state_from, kZeroState);
  EXPECT_EQ(rows[1].state_save, 5);

  Tables tables;
  apply_slab(slab.data(), tables.targets());
  EXPECT_EQ(tables.rows[0].slot, 2);
  EXPECT_EQ(tables.rows[1].q_len, 3);
  EXPECT_EQ(tables.blocks[0][1 * Tables::kStride + 1], 4);
  EXPECT_EQ(tables.blocks[0][1 * Tables::kStride + 2], -7) << "entries beyond the patch are left alone";
  EXPECT_EQ(tables.blocks[1][2 * Tables::kStride + 5], 8);
  EXPECT_EQ(tables.log[1 * Tables::kLog + 2], 3);
  EXPECT_EQ(tables.log[1 * Tables::kLog + 3], -7);
  EXPECT_EQ(tables.sampling[1].seed, 42u);
  EXPECT_EQ(tables.stopped[1], 0) << "a row that starts has not been stopped, whoever had its slot before";
  EXPECT_EQ(tables.stopped[2], 1);
  EXPECT_EQ(tables.sampling[1].prompt_len, 3);
  EXPECT_EQ(tables.sampling[1].min_len, 5);
  EXPECT_EQ(tables.bias_values[1 * kMaxLogitBias + 1], 2.5f);
  EXPECT_EQ(tables.stop_ids[1 * kMaxStopTokenIds + 1], 11);
}

TEST(SlabWriter, a_row_that_moves_on_without_a_slab_goes_on_from_its_own_state) {
  BatchRow rows[] = {{.slot = 0, .q_len = 1, .kv_len = 9, .samples = 1, .state_from = 4, .state_save = 2}};
  advance_rows(rows, 1);
  EXPECT_EQ(rows[0].kv_len, 10);
  EXPECT_EQ(rows[0].state_from, 0);
  EXPECT_EQ(rows[0].state_save, 0);
}

TEST(SlabWriter, the_largest_step_fits_the_capacity) {
  const SlabLimits l = limits();
  auto request = std::make_shared<Request>();
  request->prompt_ids = {1};
  for (int i = 0; i < kMaxLogitBias; ++i) request->sampling.logit_bias.push_back({i, 1.0f});
  request->stop_token_ids.assign(kMaxStopTokenIds, 1);
  StepPlan plan{.step = 1};
  for (int r = 0; r < l.max_rows; ++r) {
    plan.rows.push_back({.slot = r, .q_len = 1, .samples = true});
    plan.starts.push_back({r, request});
    for (int g = 0; g < l.num_groups; ++g) {
      for (int piece = 0; piece < 4; ++piece) {
        plan.block_patches.push_back({.group = g, .slot = r, .first_index = piece * 8,
                                      .blocks = std::vector<int32_t>(l.max_patch_blocks / l.max_rows / 4)});
      }
    }
    for (int piece = 0; piece < 2; ++piece) {
      plan.log_patches.push_back(
          {.slot = r, .ids = std::vector<TokenId>(l.max_log_patch_tokens / l.max_rows / 2)});
    }
  }
  plan.num_decode_rows = plan.num_tokens = l.max_rows;
  std::vector<std::byte> slab(slab_capacity(l));
  EXPECT_LE(write_slab(plan, 7, slab.data(), slab.size()), slab.size());
}

TEST(SlabWriterDeathTest, a_plan_that_outgrows_its_slab_is_our_bug) {
  std::vector<std::byte> slab(256);
  EXPECT_DEATH(write_slab(example_plan(), 7, slab.data(), slab.size()), "outgrew");
}

}  // namespace
}  // namespace tailrace
