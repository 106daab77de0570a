#include "ids/per_op.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using Kind = StepOp::Kind;

// Two products and attention between them, of three steps of graph 2, with a kernel that is part of no op; another graph
// ran before. Times in us.
std::vector<KernelRun> runs_of_three_steps() {
  std::vector<KernelRun> runs = {{.name = "linear_kernel", .begin_ns = 0, .end_ns = 500, .launch = 1, .node = 1, .graph = 1}};
  for (int step = 0; step < 3; ++step) {
    const int64_t at = 1000 + step * 20'000;
    const auto add = [&](const char* name, uint64_t node, int64_t begin, int64_t end) {
      runs.push_back({.name = name, .begin_ns = at + begin, .end_ns = at + end, .launch = 10 + static_cast<uint64_t>(step),
                      .node = node, .graph = 2});
    };
    add("linear_kernel", 40, 9'000, 15'000);  // began while attention ran
    add("begin_kernel", 10, 1'000, 2'000);
    add("decode_kernel", 30, 6'000, 10'000);
    add("linear_kernel", 20, 2'000, 5'000);
  }
  return runs;
}

TEST(PerOp, each_kernels_time_is_what_the_step_took_longer_for_it) {
  const std::vector<StepOp> ops = {{"in", Kind::kProduct, 3000}, {"attention", Kind::kAttention, 500}, {"out", Kind::kProduct, 100}};
  const PerOp out = per_op(runs_of_three_steps(), ops);
  EXPECT_TRUE(out.matched);
  EXPECT_EQ(out.steps, 1);  // the first and the last are left out
  EXPECT_DOUBLE_EQ(out.step_us, 20);
  ASSERT_EQ(out.ops.size(), 4u);
  const double us[] = {7, 3, 5, 5}, gaps[] = {6, 0, 1, 0}, bytes[] = {0, 3000, 500, 100};
  const char* labels[] = {"begin_kernel", "in", "attention", "out"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out.ops[i].label, labels[i]);
    EXPECT_DOUBLE_EQ(out.ops[i].us, us[i]) << labels[i];
    EXPECT_DOUBLE_EQ(out.ops[i].gap_us, gaps[i]) << labels[i];
    EXPECT_DOUBLE_EQ(out.ops[i].bytes, bytes[i]) << labels[i];
  }
}

TEST(PerOp, kernels_that_are_not_the_models_stand_under_their_names) {
  const PerOp out = per_op(runs_of_three_steps(), {{"in", Kind::kProduct, 3000}, {"out", Kind::kProduct, 100}});
  EXPECT_FALSE(out.matched);
  ASSERT_EQ(out.ops.size(), 3u);
  EXPECT_EQ(out.ops[1].label, "linear_kernel");
  EXPECT_DOUBLE_EQ(out.ops[1].count, 2);
  EXPECT_DOUBLE_EQ(out.ops[1].us, 8);
  EXPECT_DOUBLE_EQ(out.ops[1].bytes, 0);
}

TEST(PerOp, an_op_that_joins_the_next_brings_its_bytes_along) {
  const PerOp out = per_op(runs_of_three_steps(), {{"in", Kind::kProduct, 3000},
                                                   {"small", Kind::kProduct, 20, true},
                                                   {"attention", Kind::kAttention, 500},
                                                   {"out", Kind::kProduct, 100}});
  EXPECT_TRUE(out.matched);
  ASSERT_EQ(out.ops.size(), 4u);
  EXPECT_DOUBLE_EQ(out.ops[2].bytes, 520);
}

TEST(PerOp, what_ran_beside_a_longer_kernel_took_no_time) {
  std::vector<KernelRun> runs = runs_of_three_steps();
  for (int step = 0; step < 3; ++step) {
    const int64_t at = 1000 + step * 20'000;
    runs.push_back({.name = "norm_kernel", .begin_ns = at + 6'500, .end_ns = at + 9'500,
                    .launch = 10 + static_cast<uint64_t>(step), .node = 35, .graph = 2});
  }
  const PerOp out = per_op(runs, {});
  for (const OpTime& op : out.ops) {
    if (op.label == "norm_kernel") EXPECT_DOUBLE_EQ(op.us + op.gap_us, 0);
    if (op.label == "decode_kernel") EXPECT_DOUBLE_EQ(op.us, 5);
  }
}

TEST(PerOp, too_few_steps) {
  std::vector<KernelRun> runs = runs_of_three_steps();
  std::erase_if(runs, [](const KernelRun& run) { return run.launch == 12; });
  EXPECT_EQ(per_op(runs, {}).steps, 0);
  EXPECT_EQ(per_op({}, {}).steps, 0);
}

}  // namespace
}  // namespace tailrace
