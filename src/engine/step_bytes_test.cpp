#include "engine/step_bytes.h"

#include <gtest/gtest.h>

#include "engine/step_ops.h"

namespace tailrace {
namespace {

TEST(StepBytes, counts_what_a_step_reads) {
  Model model;
  const auto bf16 = [](int64_t rows, int64_t cols) { return Weight{.format = Format::kBF16, .rows = rows, .cols = cols}; };
  const auto experts = [](int64_t rows, int64_t cols) {
    return ExpertWeights{.first = {.format = Format::kNVFP4, .rows = rows, .cols = cols}, .count = 8};
  };
  model.blocks.push_back(EmbedBlock{.table = bf16(1000, 64)});
  model.blocks.push_back(AttnInBlock{.q = bf16(64, 64), .k = bf16(32, 64), .v = bf16(32, 64)});
  model.blocks.push_back(AttentionBlock{});
  for (int layer = 0; layer < 2; ++layer) model.blocks.push_back(AttentionBlock{.group = 1, .layer = layer, .window = 8});
  GatedDeltaBlock delta;
  delta.qkv = bf16(12, 64), delta.z = bf16(4, 64), delta.b = delta.a = bf16(1, 64), delta.out = bf16(64, 4);
  model.blocks.push_back(delta);
  MoeBlock moe;
  moe.router = bf16(8, 64), moe.gate = moe.up = experts(32, 64), moe.down = experts(64, 32), moe.top_k = 2;
  model.blocks.push_back(moe);
  model.blocks.push_back(HeadBlock{.head = bf16(1000, 64)});
  model.groups = {{.window = 0, .num_layers = 1, .kv_heads = 2, .head_dim = 16}, {.window = 8, .num_layers = 2, .kv_heads = 2, .head_dim = 16}};
  model.states = {.num_layers = 1, .k_heads = 1, .v_heads = 1, .k_dim = 4, .v_dim = 4, .conv_inputs = 3};
  const StepBytes bytes = step_bytes(model);
  EXPECT_EQ(bytes.weights, 2 * 64 * (128 + 8 + 1000 + 12 + 4 + 2 + 4));  // the embedding's table is not read
  ASSERT_EQ(bytes.mixtures.size(), 1u);
  EXPECT_EQ(bytes.mixtures[0].expert_bytes, 3 * 32 * 64 * 9 / 16);
  EXPECT_DOUBLE_EQ(StepBytes::distinct_experts(bytes.mixtures[0], 1), 2);
  EXPECT_DOUBLE_EQ(StepBytes::distinct_experts(bytes.mixtures[0], 2), 3.5);
  const double states = 2 * 4.0 * (16 + 3 * 12);
  EXPECT_DOUBLE_EQ(bytes.step(1, 4), bytes.weights + 2 * 3456 + 4 * (4 * 32 + 8 * 32) + states);
  EXPECT_DOUBLE_EQ(bytes.step(2, 100), bytes.weights + 3.5 * 3456 + 2 * (100 * 4 * 32 + 8 * 8 * 32) + 2 * states);
  EXPECT_DOUBLE_EQ(bytes.step(2, 100, 3), bytes.step(2, 100) - 0.5 * 3456);  // as counted

  // FP8 halves those of KV.
  Model halved = model;
  for (KvGroupSpec& group : halved.groups) group.format = Format::kF8E4M3;
  EXPECT_DOUBLE_EQ(bytes.step(2, 100) - step_bytes(halved).step(2, 100), 2 * (100 * 2 * 32 + 8 * 4 * 32));

  // The same bytes op by op.
  for (const Model* of : {&model, &halved}) {
    for (const double rows : {1.0, 2.0}) {
      double total = 0;
      for (const StepOp& op : step_ops(*of, rows, 100)) total += op.bytes;
      EXPECT_DOUBLE_EQ(total, step_bytes(*of).step(rows, 100));
    }
    double counted = 0;
    for (const StepOp& op : step_ops(*of, 2, 100, 3)) counted += op.bytes;
    EXPECT_DOUBLE_EQ(counted, step_bytes(*of).step(2, 100, 3));
  }
  EXPECT_EQ(step_ops(model, 1, 4).size(), 1u + 3 + 4 + 3 + 1);

  // A shared expert is read by every step, wherever it lies.
  MoeBlock& mixture = std::get<MoeBlock>(model.blocks[model.blocks.size() - 2]);
  mixture.dense.share = bf16(1, 64);
  mixture.gate.count = mixture.up.count = mixture.down.count = 9;
  ASSERT_TRUE(mixture.shared_last());
  EXPECT_EQ(step_bytes(model).weights, bytes.weights + 2 * 64 + 3456);
  double total = 0;
  for (const StepOp& op : step_ops(model, 2, 100)) total += op.bytes;
  EXPECT_DOUBLE_EQ(total, bytes.step(2, 100) + 2 * 64 + 3456);
}

}  // namespace
}  // namespace tailrace
