#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "engine/step_bytes.h"
#include "engine/step_trace.h"
#include "kernels/block_widths.h"
#include "model/model.h"

namespace tailrace {
namespace {

class NoBackend : public HostBackend {
 public:
  const char* name() const override { return "none"; }
  Expected<size_t> packed_bytes(const TensorView& tensor) const override { return tensor.bytes; }
  Status pack(const TensorView&, void*) const override { return Status(); }
  Expected<size_t> scratch_bytes(const BlockList&, const StepLimits& limits) const override {
    return size_t{1024} * limits.max_step_tokens;
  }
  Status prepare(const BlockList&, const StepLimits&, void*) override { return Status(); }
  std::vector<std::string> decisions(const BlockList&) const override { return {}; }
  const float* last_logits() const override { return nullptr; }
  void forward(Stream&, const Batch&) override {}
};

// Serves four rows at most, as CUDA's plans serve 2048.
class FewRows : public NoBackend {
  Expected<size_t> scratch_bytes(const BlockList&, const StepLimits& limits) const override {
    if (limits.max_rows > 4) return fail(StatusCode::kUnsupported, "more than 4 rows");
    return size_t{64};
  }
};

class NoExperts : public NoBackend {
  Expected<size_t> packed_bytes(const TensorView& tensor) const override {
    if (tensor.role == MatrixRole::kExpert)
      return fail(StatusCode::kUnsupported, "tensor " + tensor.name + ": no experts here");
    return NoBackend::packed_bytes(tensor);
  }
};

class JoinsShared : public NoBackend {
  bool joins_shared_expert(int64_t experts, int top_k) const override { return experts <= 256 && top_k <= 8; }
};

Model two_groups() {
  Model model;
  model.config.vocab = 1000;
  model.config.context = 4096;
  model.groups = {{.window = 0, .num_layers = 2, .kv_heads = 2, .head_dim = 64},
                  {.window = 512, .num_layers = 10, .kv_heads = 2, .head_dim = 64}};
  return model;
}

EngineLimits small_limits() { return {.max_rows = 4, .chunk_size = 256, .max_total_tokens = 8192}; }

// Of a model with dummy weights, described only: nothing is claimed.
Expected<Model> describe(const std::string& name, const Backend& backend, size_t* bytes) {
  const std::string folder = TAILRACE_SOURCE_DIR "/configs/" + name;
  const auto checkpoint = Checkpoint::open_config(folder);
  if (!checkpoint) return fail(checkpoint.error());
  const auto config = load_model_config(**checkpoint);
  if (!config) return fail(config.error());
  WeightLoader loader(**checkpoint, *config, backend, nullptr, 1);
  auto model = build_model(*config, loader);
  *bytes = loader.bytes();
  return model;
}

TEST(GptOss, the_bundled_configurations_have_the_published_shapes) {
  struct Size {
    const char* name;
    double bytes;  // of the published checkpoint; here biases and norms are in fp32
    size_t layers;
  };
  for (const Size& size : {Size{"gpt-oss-20b", 13.76e9, 24}, Size{"gpt-oss-120b", 65.25e9, 36}}) {
    SCOPED_TRACE(size.name);
    size_t bytes = 0;
    const auto model = describe(size.name, NoBackend(), &bytes);
    ASSERT_TRUE(model.has_value()) << model.error().message();
    EXPECT_NEAR(static_cast<double>(bytes) / size.bytes, 1, 0.005);
    ASSERT_EQ(model->groups.size(), 2u);
    EXPECT_EQ(model->groups[1].window, 128);
    EXPECT_EQ(model->groups[1].num_layers, static_cast<int32_t>(size.layers) / 2);
    EXPECT_EQ(model->blocks.size(), 1 + size.layers * 4 + 1);
  }
}

TEST(Qwen35, the_bundled_configuration_has_the_published_size_and_its_states) {
  size_t bytes = 0;
  const auto model = describe("qwen3.6-35b-a3b", NoBackend(), &bytes);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_NEAR(static_cast<double>(bytes) / 20.8e9, 1, 0.01);  // of text: no vision, no MTP
  ASSERT_EQ(model->groups.size(), 1u);
  EXPECT_EQ(model->groups[0].num_layers, 10);
  EXPECT_EQ(model->states.num_layers, 30);
  EXPECT_NEAR(static_cast<double>(model->states.bytes()), 62.9e6 + 2.9e6, 1e5);
  EXPECT_EQ(model->blocks.size(), 1 + 30 * 2 + 10 * 4 + 1u);
}

// The mixed checkpoint's shared expert has its experts' format and shape, so has the FP8 one's: a backend that takes it
// as one of them gets it so in every layer, and reads the same bytes.
TEST(Qwen35, the_shared_expert_is_the_last_of_the_experts_where_the_backend_takes_it) {
  for (const char* name : {"qwen3.6-35b-a3b", "qwen3.6-35b-a3b-fp8"}) {
    SCOPED_TRACE(name);
    size_t beside_bytes = 0, joined_bytes = 0;
    const auto beside = describe(name, NoBackend(), &beside_bytes);
    const auto joined = describe(name, JoinsShared(), &joined_bytes);
    ASSERT_TRUE(beside.has_value() && joined.has_value());
    EXPECT_NEAR(static_cast<double>(joined_bytes) / static_cast<double>(beside_bytes), 1, 1e-4);
    EXPECT_EQ(step_bytes(*joined).step(4, 100), step_bytes(*beside).step(4, 100));
    int mixtures = 0;
    for (size_t i = 0; i < joined->blocks.size(); ++i) {
      const auto* moe = std::get_if<MoeBlock>(&joined->blocks[i]);
      if (moe == nullptr) continue;
      ++mixtures;
      EXPECT_TRUE(moe->shared_last() && check_moe(*moe).ok());
      EXPECT_EQ(moe->gate.count, 257);
      const auto& other = std::get<MoeBlock>(beside->blocks[i]);
      EXPECT_TRUE(other.dense.present() && !other.shared_last() && check_moe(other).ok());
    }
    EXPECT_EQ(mixtures, 40);
  }
}

// Backends size scratch by what is there, which a description must tell without memory of its own.
TEST(Gemma4, the_bundled_configuration_has_the_published_size_and_names_every_norm) {
  size_t bytes = 0;
  const auto model = describe("gemma-4-26b-a4b", NoBackend(), &bytes);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_NEAR(static_cast<double>(bytes) / 17.6e9, 1, 0.01);
  ASSERT_EQ(model->groups.size(), 2u);
  EXPECT_EQ(model->groups[0].num_layers, 5);
  EXPECT_EQ(model->groups[0].kv_heads * model->groups[0].head_dim, 2 * 512);
  EXPECT_EQ(model->groups[1].num_layers, 25);
  EXPECT_EQ(model->groups[1].kv_heads * model->groups[1].head_dim, 8 * 256);
  const auto& in = std::get<AttnInBlock>(model->blocks[1 + 5 * 4]);  // the first full layer
  EXPECT_TRUE(in.v.rows == 0 && in.v_norm.weight != nullptr && in.q_norm.weight != nullptr);
  const auto& moe = std::get<MoeBlock>(model->blocks[4]);
  for (const Norm& norm : {moe.norm, moe.router_norm, moe.experts_post_norm, moe.dense.norm, moe.dense.post_norm,
                           moe.post_norm}) {
    EXPECT_NE(norm.weight, nullptr);
  }
  EXPECT_TRUE(moe.out_scale != nullptr && moe.expert_scale != nullptr && moe.dense.present() && !moe.plain());
}

TEST(GptOss, a_backend_without_experts_refuses_the_model_before_it_loads) {
  size_t bytes = 0;
  const auto model = describe("gpt-oss-20b", NoExperts(), &bytes);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kUnsupported);
  EXPECT_EQ(model.error().message(), "tensor model.layers.0.mlp.experts.gate_proj.weight: no experts here");
}

TEST(MemoryPlan, what_the_backend_cannot_serve_is_refused_while_planning) {
  EngineLimits limits = small_limits();
  EXPECT_TRUE(plan_memory(two_groups(), 1, FewRows(), limits, 0, 1000).has_value());
  limits.max_rows = 5;
  const auto plan = plan_memory(two_groups(), 1, FewRows(), limits, 0, 1000);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().message(), "more than 4 rows");
}

TEST(MemoryPlan, keys_and_values_of_half_the_bytes_are_twice_as_many) {
  EngineLimits limits = small_limits();
  limits.max_total_tokens = 0, limits.default_total_tokens = 0;
  const auto full_blocks = [&](Format format) {
    Model model = two_groups();
    for (KvGroupSpec& group : model.groups) group.format = format;
    const auto plan = plan_memory(model, 1 << 20, NoBackend(), limits, size_t{64} << 20, 1000);
    EXPECT_TRUE(plan.has_value()) << plan.error().message();
    EXPECT_LE(plan->total_bytes(), size_t{64} << 20);
    return plan ? plan->kv.groups[0].num_blocks : 0;
  };
  EXPECT_GE(full_blocks(Format::kF8E4M3), 2 * full_blocks(Format::kBF16) - 1);
}

TEST(MemoryPlan, window_groups_own_a_window_sized_pool) {
  auto plan = plan_memory(two_groups(), 1 << 20, NoBackend(), small_limits(), size_t{1} << 32, 1000);
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->kv.groups[0].num_blocks, 8192 / 16 + 1);
  EXPECT_LT(plan->kv.groups[1].num_blocks, 8192 / 16 / 2) << "a window group must not be sized by the context";
  EXPECT_GE(plan->kv.groups[1].num_blocks, 4 * 512 / 16) << "every running row's window must fit";
}

TEST(MemoryPlan, the_ledger_adds_up_and_no_line_but_kv_and_tables_grows_with_the_context) {
  EngineLimits limits = small_limits();
  auto small = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 33, 1000);
  ASSERT_TRUE(small.has_value());
  limits.max_total_tokens = 65536;
  auto large = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 33, 1000);
  ASSERT_TRUE(large.has_value());
  size_t total = 0;
  for (size_t i = 0; i < large->ledger.size(); ++i) {
    total += large->ledger[i].bytes;
    if (large->ledger[i].name == "KV full") continue;
    EXPECT_EQ(large->ledger[i].bytes, small->ledger[i].bytes) << i;
  }
  EXPECT_EQ(total, large->total_bytes());
  EXPECT_NE(format_ledger(*large).find("KV window 512"), std::string::npos);
}

TEST(MemoryPlan, a_small_pool_lowers_the_context_and_says_so) {
  EngineLimits limits = small_limits();
  limits.max_total_tokens = 1024;
  auto plan = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 32, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->context_length, 1024);
  ASSERT_EQ(plan->notes.size(), 1u);
  // Everything sized by the context shrinks with it, in the ledger and in what is claimed.
  limits.max_total_tokens = 0;
  limits.context_length = 1024;
  auto asked = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 32, 1000);
  ASSERT_TRUE(asked.has_value());
  for (size_t i = 0; i < plan->ledger.size(); ++i) {
    if (plan->ledger[i].name.rfind("KV", 0) == 0) continue;  // these follow --max-total-tokens
    EXPECT_EQ(plan->ledger[i].bytes, asked->ledger[i].bytes) << plan->ledger[i].name;
  }
}

TEST(MemoryPlan, a_context_beyond_the_models_own_is_said) {
  EngineLimits limits = small_limits();
  limits.context_length = 8192;
  auto plan = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 32, 1000);
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_NE(plan->notes[0].find("4096"), std::string::npos) << plan->notes[0];
}

TEST(MemoryPlan, a_gpus_pool_takes_what_the_memory_allows) {
  const size_t memory = size_t{8} << 30;
  EngineLimits limits = default_limits("cuda");
  limits.max_rows = 4;
  auto gpu = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, memory, 1000);
  ASSERT_TRUE(gpu.has_value()) << gpu.error().message();
  EXPECT_LE(gpu->total_bytes(), memory * 9 / 10 + (1 << 20));
  EXPECT_GT(gpu->total_bytes(), memory * 8 / 10);
  EXPECT_EQ(gpu->kv.block_size, 64);
  auto cpu = plan_memory(two_groups(), 1 << 20, NoBackend(), default_limits("cpu"), memory, 1000);
  ASSERT_TRUE(cpu.has_value());
  EXPECT_EQ(cpu->kv.groups[0].num_blocks, 65536 / 16 + 1);
}

// Qwen3.6-35B-A3B's: 30 layers of 32 states of 128 x 128, and 3 inputs of 8192 channels, in fp32.
Model with_states() {
  Model model = two_groups();
  model.states = {.num_layers = 30, .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128, .conv_inputs = 3};
  return model;
}

TEST(MemoryPlan, recurrent_states_and_their_checkpoints_are_lines_of_the_ledger) {
  const size_t each = with_states().states.bytes();
  EXPECT_EQ(each, size_t{30} * 4 * (32 * 128 * 128 + 3 * 8192));
  EngineLimits limits = small_limits();
  const auto line = [](const MemoryPlan& plan, const std::string& name) {
    for (const LedgerLine& line : plan.ledger) {
      if (line.name == name) return line.bytes;
    }
    return size_t{0};
  };
  auto plan = plan_memory(with_states(), 1 << 20, NoBackend(), limits, size_t{64} << 30, 1000);
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_TRUE(plan->kv.states.recurrent);
  EXPECT_EQ(plan->kv.states.num_checkpoints, 4 * limits.max_rows);
  EXPECT_EQ(line(*plan, "states"), 4 * each);
  EXPECT_EQ(line(*plan, "checkpoints"), 16 * each);
  // Where memory is short they take a share, without a cache none.
  plan = plan_memory(with_states(), 1 << 20, NoBackend(), limits, size_t{4} << 30, 1000);
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_GT(plan->kv.states.num_checkpoints, 0);
  EXPECT_LT(line(*plan, "checkpoints"), (size_t{4} << 30) * 15 / 100);
  limits.prefix_cache = false;
  plan = plan_memory(with_states(), 1 << 20, NoBackend(), limits, size_t{4} << 30, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(line(*plan, "checkpoints"), 0u);
  limits.max_rows = 64;
  EXPECT_FALSE(plan_memory(with_states(), 1 << 20, NoBackend(), limits, size_t{4} << 30, 1000)->fits.ok());
  EXPECT_FALSE(plan_memory(two_groups(), 1 << 20, NoBackend(), small_limits(), 0, 1000)->kv.states.recurrent);
}

TEST(MemoryPlan, what_does_not_fit_is_refused_with_numbers) {
  auto plan = plan_memory(two_groups(), size_t{8} << 20, NoBackend(), small_limits(), size_t{4} << 20, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->fits.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(plan->fits.message().find("weights 8.0 MiB"), std::string::npos) << plan->fits.message();
  EXPECT_NE(plan->fits.message().find("the weights alone are 4.0 MiB too large"), std::string::npos)
      << plan->fits.message();
  EXPECT_EQ(plan->fits.message().find("--context-length"), std::string::npos) << "would not help";
  plan = plan_memory(two_groups(), size_t{4} << 20, NoBackend(), small_limits(), size_t{4} << 20, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_NE(plan->fits.message().find("--max-total-tokens"), std::string::npos) << plan->fits.message();
  EXPECT_EQ(plan->fits.message().find("--chunked-prefill-size"), std::string::npos) << "is small";
}

// What it would take to serve one context stands beside what there is.
TEST(MemoryPlan, what_does_not_fit_has_a_ledger) {
  EngineLimits limits = small_limits();
  limits.max_total_tokens = 0;
  const auto plan = plan_memory(with_states(), size_t{8} << 20, NoBackend(), limits, size_t{4} << 20, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE(plan->fits.ok());
  EXPECT_EQ(plan->kv.groups[0].num_blocks, two_groups().config.context / limits.block_size + 1);
  EXPECT_EQ(plan->kv.states.num_checkpoints, 0) << "no room is not unknown room";
  EXPECT_GT(plan->total_bytes(), size_t{8} << 20);
  const std::string table = format_ledger(*plan);
  EXPECT_NE(table.find("weights"), std::string::npos) << table;
  EXPECT_NE(table.find("of 4.0 MiB free, by --mem-fraction-static: the model does not fit\n"), std::string::npos)
      << table;
  const auto large = plan_memory(with_states(), size_t{8} << 20, NoBackend(), limits, size_t{64} << 30, 1000);
  EXPECT_TRUE(large->fits.ok());
  EXPECT_NE(format_ledger(*large).find("of 65536.0 MiB free, by --mem-fraction-static\n"), std::string::npos);
}

TEST(MemoryPlan, a_chunk_that_takes_the_memory_is_named) {
  EngineLimits limits = small_limits();
  limits.chunk_size = 1 << 20;
  auto plan = plan_memory(two_groups(), 1 << 20, NoBackend(), limits, size_t{1} << 30, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_NE(plan->fits.message().find("lower --chunked-prefill-size 1048576"), std::string::npos)
      << plan->fits.message();
}

TEST(StepTrace, gaps_are_split_by_cause) {
  StepTrace trace;
  EXPECT_EQ(trace.add({.launched_ns = 0, .begun_ns = 1000, .done_ns = 500'000}).ns, 0);
  IdleGap gap = trace.add({.launched_ns = 100'000, .begun_ns = 505'000, .done_ns = 900'000});
  EXPECT_EQ(gap.ns, 5000);
  EXPECT_EQ(gap.cause, IdleCause::kMetadata);
  gap = trace.add({.launched_ns = 950'000, .begun_ns = 960'000, .done_ns = 1'000'000});
  EXPECT_EQ(gap.ns, 60'000);
  EXPECT_EQ(gap.cause, IdleCause::kHostLate);
  gap = trace.add({.launched_ns = 2'000'000, .begun_ns = 2'001'000, .done_ns = 2'100'000, .had_work = false});
  EXPECT_EQ(gap.cause, IdleCause::kNoWork);
  gap = trace.add({.launched_ns = 2'150'000, .begun_ns = 2'151'000, .done_ns = 2'200'000, .waited_for_result = true});
  EXPECT_EQ(gap.cause, IdleCause::kResultWait);
  gap = trace.add({.launched_ns = 2'100'000, .begun_ns = 2'201'000, .done_ns = 2'300'000, .has_slab = false});
  EXPECT_EQ(gap.cause, IdleCause::kLaunch);
}

}  // namespace
}  // namespace tailrace
