#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/test_fault.h"
#include "device/device.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/tiny_model.h"

namespace tailrace {
namespace {

// Root mean square difference relative to the reference's root mean square; infinite for what is not a number.
double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (got[i] - expected[i]) * static_cast<double>(got[i] - expected[i]);
    size += static_cast<double>(expected[i]) * expected[i];
  }
  const double error = std::sqrt(difference / size);
  return std::isfinite(error) ? error : HUGE_VAL;
}

// Mean over rows; a single row may be three times as far off. Activations of quantised weights are rounded to 8 bits,
// those of BF16 to bf16; KV to bf16 everywhere.
double tolerance_of(Format format) {
  if (format == Format::kF32 || format == Format::kF16 || format == Format::kF8E4M3) return 2e-3;
  return format == Format::kBF16 ? 1e-2 : 3e-2;
}

std::unique_ptr<HostBackend> cpu_backend(int threads = 2, bool fold = false, int splits = 0) {
  return create_cpu_backend({.threads = threads, .kv_splits = splits, .fold_decode = fold});
}

using Steps = std::vector<std::vector<StepRow>>;

// Prefill alone and in chunks, decode, and mixed steps, with rows that come and go.
const Steps kMixedSteps = {
    {{0, 40, 40}},
    {{0, 1, 41}, {1, 70, 70, 0}, {2, 3, 3}},
    {{0, 1, 42}, {2, 1, 4}, {1, 30, 100}},
    {{1, 1, 101}, {0, 1, 43}, {2, 1, 5}},
    {{2, 1, 6}, {3, 257, 257}, {4, 17, 17}},
    {{4, 1, 18}, {3, 1, 258}, {0, 1, 44}, {1, 1, 102}, {5, 2, 2}},
};

void expect_equal_to_reference(const TinyConfig& config, std::unique_ptr<HostBackend> backend, const Steps& steps,
                               double tolerance, uint64_t seed = 3) {
  BackendHarness cpu(config, std::move(backend), seed), reference(config, create_reference_backend({}), seed);
  double sum = 0;
  int count = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto got = cpu.step(steps[s]), expected = reference.step(steps[s]);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = relative_error(got[i], expected[i]);
      sum += error;
      ++count;
      EXPECT_LT(error, 3 * tolerance)
          << format_traits(config.format).name << " step " << s << " sampling row " << i;
    }
    cpu.log = reference.log;  // both go on with the reference's tokens
  }
  EXPECT_LT(sum, tolerance * count) << format_traits(config.format).name;
}

TEST(CpuBackend, every_format_equals_the_reference_on_mixed_steps) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    const bool super = format_traits(format).block_elems == 256;
    TinyConfig config{.format = format, .down_format = format, .head_format = format};
    if (super) {
      config.hidden = 256;
      config.intermediate = 256;
      config.q_heads = 8;
    }
    expect_equal_to_reference(config, cpu_backend(), kMixedSteps, tolerance_of(format));
  }
}

TEST(CpuBackend, mixed_formats_in_one_layer_as_in_q4_k_m) {
  const TinyConfig config{.format = Format::kQ4_K, .down_format = Format::kQ6_K, .head_format = Format::kBF16,
                          .hidden = 256, .q_heads = 8, .intermediate = 256};
  expect_equal_to_reference(config, cpu_backend(), kMixedSteps, tolerance_of(Format::kQ4_K));
  const TinyConfig dense{.format = Format::kF32, .down_format = Format::kQ8_0, .head_format = Format::kF16};
  expect_equal_to_reference(dense, cpu_backend(3), kMixedSteps, tolerance_of(Format::kQ8_0));
}

TEST(CpuBackend, every_feature_equals_the_reference) {
  const TinyConfig qwen{.bias = true, .qk_norm = true};
  const TinyConfig gemma{.layers = 3, .head_dim = 48, .rotary_dim = 48, .qk_norm = true, .post_norm = true, .gelu = true,
                         .final_softcap = 20, .window = 24};
  const TinyConfig partial{.q_heads = 7, .kv_heads = 1, .head_dim = 64, .rotary_dim = 16, .sinks = true,
                           .attention_softcap = 30};
  for (const TinyConfig& config : {qwen, gemma, partial}) {
    for (int splits : {0, 5}) {
      for (bool fold : {false, true}) {
        expect_equal_to_reference(config, cpu_backend(2, fold, splits), kMixedSteps, tolerance_of(config.format));
      }
    }
  }
}

TEST(CpuBackend, every_instruction_set_equals_the_reference) {
  const std::string best = cpu::isa_name();
  for (const char* isa : {"portable", "avx2", "avx512_vnni"}) {
    if (!cpu::set_isa_for_test(isa)) continue;
    for (Format format : {Format::kF32, Format::kQ4_1}) {
      expect_equal_to_reference({.format = format, .down_format = format, .head_format = format, .qk_norm = true},
                                cpu_backend(), kMixedSteps, tolerance_of(format));
    }
  }
  EXPECT_TRUE(cpu::set_isa_for_test(best.c_str()));
}

// Five experts, rows that are no whole tiles where the format allows it; the last step takes two passes of kMoeTokens.
TEST(CpuBackend, mixtures_of_experts_equal_the_reference) {
  Steps steps = kMixedSteps;
  steps.push_back({{6, 300, 300}, {7, 290, 290}});
  const std::string best = cpu::isa_name();
  for (const char* isa : {"portable", "avx2", "avx512_vnni"}) {
    if (!cpu::set_isa_for_test(isa)) continue;
    SCOPED_TRACE(isa);
    for (const Format format : {Format::kF32, Format::kBF16}) {
      const TinyConfig config{.format = format, .down_format = format, .intermediate = 72, .sinks = true, .experts = 5};
      expect_equal_to_reference(config, cpu_backend(), steps, tolerance_of(format));
    }
    const TinyConfig one{.intermediate = 40, .experts = 3, .top_k = 1};
    const TinyConfig all{.intermediate = 40, .experts = 3, .top_k = 3};
    for (const TinyConfig& config : {one, all}) expect_equal_to_reference(config, cpu_backend(3), kMixedSteps, 2e-3);
    const TinyConfig mxfp4{.format = Format::kMXFP4, .down_format = Format::kMXFP4, .experts = 5};
    const TinyConfig unlike{.format = Format::kBF16, .down_format = Format::kMXFP4, .experts = 5};
    for (const TinyConfig& config : {mxfp4, unlike}) {
      expect_equal_to_reference(config, cpu_backend(), kMixedSteps, tolerance_of(Format::kMXFP4));
    }
  }
  EXPECT_TRUE(cpu::set_isa_for_test(best.c_str()));
}

// A router with its own norm, scales of experts, branches beside them, norms of their sum: Gemma 4's and Qwen3.6's.
TEST(CpuBackend, branches_beside_the_experts_equal_the_reference) {
  Steps steps = kMixedSteps;
  steps.push_back({{6, 300, 300}, {7, 290, 290}});
  for (const TinyMixture mixture : {TinyMixture::kGemma, TinyMixture::kQwen}) {
    for (const Format format : {Format::kF32, Format::kBF16, Format::kF8E4M3, Format::kNVFP4}) {
      SCOPED_TRACE(std::string(format_traits(format).name) + (mixture == TinyMixture::kGemma ? " gemma" : " qwen"));
      // Rounding to int8 turns close choices of experts: there all are chosen.
      TinyConfig config{.format = format, .down_format = format, .layers = 1, .intermediate = 96, .experts = 5,
                        .top_k = format == Format::kNVFP4 ? 5 : 2, .mixture = mixture};
      expect_equal_to_reference(config, cpu_backend(3), format == Format::kF32 ? steps : kMixedSteps,
                                tolerance_of(format), 4);
      if (format != Format::kNVFP4) continue;
      config.down_format = Format::kBF16;  // kinds of inputs that differ within a branch
      expect_equal_to_reference(config, cpu_backend(), kMixedSteps, tolerance_of(format));
    }
  }
}

TEST(CpuBackend, values_that_are_normed_keys_and_a_scaled_residual_equal_the_reference) {
  const TinyConfig dense{.layers = 3, .qk_norm = true, .post_norm = true, .gelu = true, .window = 24, .gemma4 = true,
                         .window_head_dim = 64};
  TinyConfig plain = dense;
  plain.post_norm = false;
  for (const TinyConfig& config : {dense, plain}) {
    expect_equal_to_reference(config, cpu_backend(), kMixedSteps, tolerance_of(Format::kF32));
  }
}

TEST(CpuBackend, random_mixed_batches_equal_the_reference) {
  std::mt19937_64 rng(17);
  for (int trial = 0; trial < 6; ++trial) {
    TinyConfig config{.kv_heads = 1 + static_cast<int>(rng() % 3), .bias = rng() % 2 == 0, .qk_norm = rng() % 2 == 0,
                      .window = rng() % 2 ? 10 + static_cast<int>(rng() % 50) : 0};
    config.q_heads = config.kv_heads * (1 + static_cast<int>(rng() % 4));
    int32_t lengths[BackendHarness::kSlots] = {};
    Steps steps;
    for (int s = 0; s < 8; ++s) {
      std::vector<StepRow> decode, extend;
      for (int slot = 0; slot < BackendHarness::kSlots; ++slot) {
        if (rng() % 3 == 0) continue;
        const auto q_len = lengths[slot] > 0 && rng() % 2 ? 1 : 2 + static_cast<int32_t>(rng() % 30);
        lengths[slot] += q_len;
        (q_len == 1 ? decode : extend).push_back({slot, q_len, lengths[slot], q_len == 1 || rng() % 3 != 0});
      }
      decode.insert(decode.end(), extend.begin(), extend.end());
      if (!decode.empty()) steps.push_back(decode);
    }
    expect_equal_to_reference(config, cpu_backend(1 + trial % 3), steps, tolerance_of(config.format), rng());
  }
}

TEST(CpuBackend, the_same_answer_alone_batched_mixed_and_chunked) {
  const TinyConfig config{.format = Format::kQ8_0, .down_format = Format::kQ8_0, .head_format = Format::kQ8_0, .window = 40};
  const auto fresh = [&] { return std::make_unique<BackendHarness>(config, cpu_backend(), 5); };
  const auto logits_after = [](BackendHarness& h, const Steps& before, const std::vector<StepRow>& last, size_t row) {
    const auto log = h.log;
    for (const auto& step : before) {
      h.step(step);
      h.log = log;
    }
    return h.step(last)[row];
  };
  const auto alone = logits_after(*fresh(), {{{0, 150, 150}}}, {{0, 1, 151}}, 0);
  const Steps chunks = {{{0, 64, 64, 0}}, {{0, 64, 128, 0}}, {{0, 22, 150}}};
  const Steps ragged = {{{0, 1, 1, 0}}, {{0, 9, 10, 0}}, {{0, 139, 149, 0}}, {{0, 1, 150}}};
  const Steps batched = {{{1, 40, 40}, {0, 150, 150}, {2, 100, 100}}};
  EXPECT_LT(relative_error(logits_after(*fresh(), chunks, {{0, 1, 151}}, 0), alone), 1e-2);
  EXPECT_LT(relative_error(logits_after(*fresh(), ragged, {{0, 1, 151}}, 0), alone), 1e-2);
  EXPECT_LT(relative_error(logits_after(*fresh(), batched, {{1, 1, 41}, {0, 1, 151}, {2, 1, 101}}, 1), alone), 1e-2);
  EXPECT_LT(relative_error(logits_after(*fresh(), batched, {{0, 1, 151}, {3, 90, 90}}, 0), alone), 1e-2);
}

TEST(CpuBackend, the_same_steps_twice_are_bitwise_equal_and_with_fixed_splits_for_any_thread_count) {
  const TinyConfig dense{.format = Format::kQ4_1, .down_format = Format::kQ4_1, .head_format = Format::kQ8_0};
  const TinyConfig moe{.format = Format::kMXFP4, .down_format = Format::kMXFP4, .experts = 5};
  for (const TinyConfig& config : {dense, moe}) {
    std::vector<std::vector<float>> all[4];
    const int threads[] = {2, 2, 1, 3};
    for (int run = 0; run < 4; ++run) {
      BackendHarness h(config, cpu_backend(threads[run], false, 2), 5);
      for (const auto& step : kMixedSteps) {
        for (auto& logits : h.step(step)) all[run].push_back(logits);
      }
    }
    for (const auto& run : all) EXPECT_EQ(run, all[0]);
  }
}

// Decode rows alone and among others: the mixture gives each token the same bits (its attention is unsplit here).
TEST(CpuBackend, a_token_s_experts_do_not_depend_on_its_neighbours) {
  const TinyConfig config{.format = Format::kMXFP4, .down_format = Format::kMXFP4, .layers = 1, .experts = 5};
  BackendHarness together(config, cpu_backend(2, false, 1), 5), apart(config, cpu_backend(1, false, 1), 5);
  const auto logits = together.step({{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 40, 40}});
  for (int32_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(apart.step({{slot, 1, 1}})[0], logits[static_cast<size_t>(slot)]) << slot;
  }
}

TEST(CpuBackend, greedy_tokens_enter_the_log_and_the_output_ring) {
  BackendHarness h({}, cpu_backend(), 8);
  const auto logits = h.step({{3, 1, 1}, {0, 20, 20}, {1, 9, 9, 0}, {2, 5, 5}});
  const int32_t slots[] = {3, 0, 2}, rows[] = {0, 1, 3}, lengths[] = {1, 20, 5};
  for (size_t i = 0; i < 3; ++i) {
    const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
    EXPECT_EQ(h.sampled[static_cast<size_t>(rows[i])].id, best);
    EXPECT_EQ(h.log_of(slots[i])[lengths[i]], best);
  }
}

TEST(CpuBackend, forward_reads_nothing_before_the_stream_gets_there) {
  const TinyConfig config{};
  BackendHarness h(config, cpu_backend(), 8), expected(config, cpu_backend(), 8);
  const auto logits = expected.step({{0, 20, 20}});
  const auto table = h.tables[0];
  const auto log = h.log;
  std::fill(h.tables[0].begin(), h.tables[0].end(), -1);
  std::fill(h.log.begin(), h.log.end(), -1);
  h.queue({{0, 20, 20}}, h.stream);
  h.tables[0].assign(table.begin(), table.end());
  std::copy(log.begin(), log.end(), h.log.begin());
  h.stream.drain();
  EXPECT_TRUE(std::equal(logits[0].begin(), logits[0].end(), h.backend().last_logits()));
}

TEST(CpuBackend, a_sampled_row_does_not_depend_on_its_neighbours) {
  const TinyConfig config{};
  const auto run = [&](int neighbours) {
    BackendHarness h(config, cpu_backend(), 9);
    std::vector<StepRow> rows;
    for (int i = 0; i < neighbours; ++i) rows.push_back({4 + i, 30 + i, 30 + i});
    rows.push_back({1, 12, 12});
    for (RowSampling& s : h.sampling) {
      s.temperature = 1.5f;
      s.seed = 42;
    }
    std::vector<TokenId> tokens;
    for (int i = 0; i < 20; ++i) {
      h.step(rows);
      tokens.push_back(h.sampled[rows.size() - 1].id);
      for (StepRow& row : rows) row = {row.slot, 1, row.kv_len + 1};
    }
    return tokens;
  };
  const auto alone = run(0);
  EXPECT_EQ(run(1), alone);
  EXPECT_EQ(run(4), alone);
}

// Hazard 10: groups with head dims of 32 and 64 share the decode scratch.
TEST(CpuBackendHazards, a_stride_derived_from_another_group_is_noticed) {
  const TinyConfig config{.layers = 2, .head_dim = 32, .window = 50, .window_head_dim = 64};
  const Steps steps = {{{0, 60, 60}, {1, 200, 200}}, {{0, 1, 61}, {1, 1, 201}}};
  expect_equal_to_reference(config, cpu_backend(2, false, 3), steps, tolerance_of(Format::kF32));
  BackendHarness good(config, cpu_backend(1, false, 3), 3), bad(config, cpu_backend(1, false, 3), 3);
  good.step(steps[0]);
  bad.step(steps[0]);
  const ScopedTestFault fault(Fault::kNone);
  const auto expected = good.step(steps[1]);
  const ScopedTestFault derived(Fault::kDerivedStride);
  EXPECT_GT(relative_error(bad.step(steps[1])[1], expected[1]), 0.05);
}

TEST(CpuBackend, runs_on_the_cpu_devices_stream) {
  const TinyConfig config{};
  BackendHarness h(config, cpu_backend(), 8), expected(config, cpu_backend(), 8);
  const auto logits = expected.step({{0, 20, 20}});
  const auto device = create_cpu_device({});
  const auto stream = device->create_stream("engine");
  h.queue({{0, 20, 20}}, *stream);
  stream->record()->wait("step_result");
  EXPECT_TRUE(std::equal(logits[0].begin(), logits[0].end(), h.backend().last_logits()));
  EXPECT_EQ(h.sampled[0].id, expected.sampled[0].id);
}

// What a stopped row's wasted step does: nothing. Its neighbours, split or not, and every KV cell are as without it.
TEST(CpuBackend, an_idle_row_reads_and_writes_no_kv) {
  const TinyConfig config{.sinks = true, .window = 24};
  const auto pools_equal = [](const BackendHarness& a, const BackendHarness& b) {
    for (size_t g = 0; g < a.groups.size(); ++g) {
      const KvGroupView& kv = a.groups[g];
      const auto values = static_cast<size_t>(kv.num_blocks * kv.num_layers * 2) * kv.kv_heads * kv.block_size * kv.head_dim;
      if (std::memcmp(kv.pool, b.groups[g].pool, values * sizeof(uint16_t)) != 0) return false;
    }
    return true;
  };
  const StepRow idle_row{1, 1, 0, 0};  // its slot's KV is NaN
  for (const bool fold : {false, true}) {
    for (const int splits : {0, 2}) {
      const auto make = [&](int which) { return which == 0 ? create_reference_backend({}) : cpu_backend(2, fold, splits); };
      for (const int which : {0, 1}) {
        BackendHarness with(config, make(which), 6), without(config, make(which), 6);
        for (BackendHarness* h : {&with, &without}) h->step({{0, 200, 200}, {2, 40, 40}});
        EXPECT_EQ(with.step({{0, 1, 201}, idle_row, {2, 1, 41}}), without.step({{0, 1, 201}, {2, 1, 41}}));
        EXPECT_EQ(with.step({idle_row, {0, 1, 202}, {3, 30, 30}}), without.step({{0, 1, 202}, {3, 30, 30}}));
        EXPECT_TRUE(with.step({idle_row}).empty());
        EXPECT_TRUE(pools_equal(with, without));
        EXPECT_EQ(with.log, without.log);
      }
    }
  }
}

// A request that overflowed: its neighbours' logits are as beside a healthy one, and who gets its blocks next reads none
// of it.
TEST(CpuBackend, a_row_of_nan_touches_no_neighbour_and_no_later_user_of_its_blocks) {
  TinyConfig q8{.format = Format::kQ8_0, .down_format = Format::kQ8_0, .window = 24};
  const TinyConfig mixture{.format = Format::kBF16, .down_format = Format::kBF16, .experts = 5};
  for (const TinyConfig& config : {TinyConfig{.sinks = true, .window = 24}, q8, mixture}) {
    for (const bool on_cpu : {false, true}) {
      const auto make = [&] { return on_cpu ? cpu_backend(2, false, 2) : create_reference_backend({}); };
      BackendHarness sick(config, make(), 6), healthy(config, make(), 6), fresh(config, make(), 6);
      for (BackendHarness* h : {&sick, &healthy}) h->step({{0, 200, 200}, {2, 40, 40}});
      healthy.step({{1, 30, 30}});  // the other's KV is what the pool holds: NaN
      for (const std::vector<StepRow>& rows : {std::vector<StepRow>{{0, 1, 201}, {1, 1, 31}, {2, 1, 41}},
                                               std::vector<StepRow>{{0, 1, 202}, {1, 40, 71}, {2, 9, 50}}}) {
        const auto beside_nan = sick.step(rows), beside = healthy.step(rows);
        EXPECT_TRUE(std::all_of(beside_nan[1].begin(), beside_nan[1].end(), [](float x) { return std::isnan(x); }));
        EXPECT_EQ(beside_nan[0], beside[0]);
        EXPECT_EQ(beside_nan[2], beside[2]);
        sick.log = healthy.log;
      }
      fresh.log = sick.log;
      EXPECT_EQ(sick.step({{1, 21, 21}}), fresh.step({{1, 21, 21}}));
      EXPECT_EQ(sick.step({{1, 1, 22}}), fresh.step({{1, 1, 22}}));
    }
  }
}

TEST(CpuBackend, refuses_what_it_cannot_compute) {
  const auto backend = cpu_backend(1);
  BlockList blocks{AttentionBlock{.q_heads = 4, .kv_heads = 2, .head_dim = 40}};
  EXPECT_EQ(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_EQ(backend->scratch_bytes(blocks, {1, 1, 16, 10}).error().code(), StatusCode::kUnsupported);  // before a load
  blocks = {AttentionBlock{.q_heads = 5, .kv_heads = 2, .head_dim = 32}};
  EXPECT_EQ(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create_reference_backend({})->prepare(blocks, {1, 1, 16, 10}, nullptr).code(), StatusCode::kInvalidArgument);
  MoeBlock moe;
  moe.router.rows = 3, moe.router.cols = 32, moe.top_k = 4;
  moe.gate.count = moe.up.count = moe.down.count = 3;
  blocks = {moe};
  EXPECT_NE(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).message().find("top_k"), std::string::npos);
  moe.top_k = 2, moe.down.count = 2;
  blocks = {moe};
  EXPECT_NE(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).message().find("number of experts"), std::string::npos);
  const auto matrix = [](int64_t rows, int64_t cols) {
    return ExpertWeights{.first = {.format = Format::kF32, .rows = rows, .cols = cols}, .count = 4};
  };
  const float weight[32] = {};
  moe.gate = moe.up = matrix(32, 32), moe.down = matrix(32, 32), moe.dense.share = {.rows = 1, .cols = 32};
  blocks = {moe};
  EXPECT_EQ(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).message(),
            "moe: a shared expert among the others, not beside them");
  EXPECT_TRUE(create_reference_backend({})->scratch_bytes(blocks, {1, 1, 16, 10}).has_value());
  moe.experts_post_norm.weight = weight;
  blocks = {moe};
  EXPECT_NE(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).message().find("no norms of its own"), std::string::npos);
}

TEST(CpuBackend, decisions_are_of_the_kinds_of_blocks_that_the_model_has) {
  const auto backend = cpu_backend();
  const auto kinds = [&](const TinyConfig& config) {
    std::string out;
    for (const std::string& line : backend->decisions(TinyModel(config, *backend, 1).blocks)) {
      out += line.substr(0, line.find(':')) + " ";
    }
    return out;
  };
  EXPECT_EQ(kinds({}), "attn_in attention extend attention decode attn_out mlp head_sample ");
  EXPECT_EQ(kinds({.layers = 2, .experts = 5, .recurrent = 1}),
            "attn_in attention extend attention decode attn_out gated_delta moe head_sample ");
}

// A token's experts are top_k; rows of the same tokens take the same; steps with prompts are not counted.
TEST(CpuBackend, decode_steps_count_the_distinct_experts_that_they_read) {
  const TinyConfig config{.format = Format::kBF16, .down_format = Format::kBF16, .layers = 2, .experts = 5, .top_k = 2};
  for (const bool on_cpu : {false, true}) {
    const BackendOptions options{.threads = 2, .count_experts = true};
    auto made = on_cpu ? create_cpu_backend(options) : create_reference_backend(options);
    const Backend& backend = *made;
    BackendHarness h(config, std::move(made), 6);
    using Counts = std::pair<uint64_t, uint64_t>;
    const auto counts = [&](int32_t rows) {
      const ExpertCounts counted = backend.expert_counts(rows);
      return Counts(counted.mixtures, counted.distinct);
    };
    h.step({{0, 20, 20}, {1, 30, 30}});
    h.step({{0, 1, 21}, {1, 5, 35}});
    EXPECT_EQ(counts(2), Counts(0, 0));
    h.step({{0, 1, 22}});
    EXPECT_EQ(counts(1), Counts(2, 4));
    std::copy_n(h.log_of(2), 1, h.log_of(3));
    h.step({{2, 1, 1}, {3, 1, 1}});
    EXPECT_EQ(counts(2), Counts(2, 4));
    h.step({{0, 1, 23}, {1, 1, 36}, {2, 1, 2}, {3, 1, 2}});
    EXPECT_EQ(counts(4).first, 2u);
    EXPECT_GT(counts(4).second, 4u);
    EXPECT_LE(counts(4).second, 10u);
    EXPECT_EQ(counts(9), Counts(0, 0)) << "more rows than a step has";
  }
}

TEST(CpuBackend, scratch_does_not_grow_with_the_context) {
  const TinyConfig config{};
  const auto backend = cpu_backend(2);
  const TinyModel model(config, *backend, 1);
  EXPECT_EQ(*backend->scratch_bytes(model.blocks, {8, 64, 1024, 203}),
            *backend->scratch_bytes(model.blocks, {8, 64, 1 << 20, 203}));
}

}  // namespace
}  // namespace tailrace
