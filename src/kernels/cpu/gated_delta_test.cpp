// Models with recurrent layers: the CPU backend's two forms against the reference's one, and states that are zeroed,
// gone on from, copied and saved.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/tiny_model.h"

namespace tailrace {
namespace {

using Steps = std::vector<std::vector<StepRow>>;

std::unique_ptr<HostBackend> make(bool on_cpu, int threads = 2, bool fold = false) {
  return on_cpu ? create_cpu_backend({.threads = threads, .fold_decode = fold}) : create_reference_backend({});
}

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (got[i] - expected[i]) * static_cast<double>(got[i] - expected[i]);
    size += static_cast<double>(expected[i]) * expected[i];
  }
  const double error = std::sqrt(difference / size);
  return std::isfinite(error) ? error : HUGE_VAL;
}

TinyConfig hybrid() {
  return {.layers = 2, .qk_norm = true, .gated = true, .recurrent = 2};
}

// Chunks of 1 to 4 tokens, whole chunks of 64 and what is beside them; rows come and go, slots are reused.
const Steps kSteps = {
    {{0, 40, 40}},
    {{0, 1, 41}, {1, 64, 64, 0}, {2, 3, 3}},
    {{0, 1, 42}, {2, 1, 4}, {1, 65, 129}},
    {{1, 1, 130}, {0, 1, 43}, {2, 1, 5}},
    {{2, 1, 6}, {3, 191, 191}, {4, 1, 1}},
    {{4, 1, 2}, {3, 1, 192}, {0, 2, 45}, {1, 4, 134}, {5, 63, 63}},
    {{3, 20, 20}, {5, 2, 65}},
};

void expect_equal(BackendHarness& got, BackendHarness& expected, const Steps& steps, double tolerance) {
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto a = got.step(steps[s]), b = expected.step(steps[s]);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_LT(relative_error(a[i], b[i]), tolerance) << "step " << s << " row " << i;
    }
    got.log = expected.log;
  }
}

TEST(GatedDelta, every_instruction_set_equals_the_reference) {
  const std::string best = cpu::isa_name();
  for (const char* isa : {"portable", "avx2", "avx512_vnni"}) {
    if (!cpu::set_isa_for_test(isa)) continue;
    SCOPED_TRACE(isa);
    for (const bool fold : {false, true}) {
      BackendHarness cpu(hybrid(), make(true, 2, fold), 3), reference(hybrid(), make(false), 3);
      expect_equal(cpu, reference, kSteps, 1e-3);
    }
  }
  EXPECT_TRUE(cpu::set_isa_for_test(best.c_str()));
}

TEST(GatedDelta, other_shapes_equal_the_reference) {
  for (TinyConfig config : {TinyConfig{.k_heads = 1, .v_heads = 1, .k_dim = 16, .v_dim = 16, .conv_width = 2},
                            TinyConfig{.k_heads = 4, .v_heads = 4, .k_dim = 128, .v_dim = 128},
                            TinyConfig{.k_heads = 2, .v_heads = 4, .k_dim = 48, .v_dim = 80, .conv_width = 6}}) {
    config.layers = 1, config.recurrent = 1;
    BackendHarness cpu(config, make(true, 3), 4), reference(config, make(false), 4);
    expect_equal(cpu, reference, kSteps, 1e-3);
  }
}

TEST(GatedDelta, strong_decays_and_steps_stay_finite_and_equal) {
  TinyConfig config = hybrid();
  config.v_heads = 12;  // the last ones forget all within a token
  BackendHarness cpu(config, make(true), 5), reference(config, make(false), 5);
  expect_equal(cpu, reference, {{{0, 300, 300}}, {{0, 1, 301}}, {{0, 10, 311}}}, 1e-3);
}

// What a row's chunks were does not show.
TEST(GatedDelta, chunks_of_any_size_give_the_same_answer) {
  for (const bool on_cpu : {true, false}) {
    BackendHarness whole(hybrid(), make(on_cpu), 6);
    const auto log = whole.log;
    whole.step({{0, 150, 150}});
    whole.log = log;
    const auto expected = whole.step({{0, 1, 151}})[0];
    for (const int chunk : {1, 2, 3, 5, 63, 64, 65, 128}) {
      BackendHarness chunked(hybrid(), make(on_cpu), 6);
      for (int at = 0; at < 150; at += chunk) {
        const int q_len = std::min(chunk, 150 - at);
        chunked.step({{0, q_len, at + q_len, 0}});
      }
      EXPECT_LT(relative_error(chunked.step({{0, 1, 151}})[0], expected), 5e-3) << chunk << on_cpu;
    }
  }
}

// Row 1 takes the prefix that row 0 computed: its KV by the block table, its state by the checkpoint.
TEST(GatedDelta, a_row_goes_on_from_a_checkpoint) {
  for (const bool on_cpu : {true, false}) {
    for (const int32_t shared : {16, 64, 144}) {
      BackendHarness h(hybrid(), make(on_cpu), 7);
      std::copy_n(h.log_of(0), 200, h.log_of(1));
      const auto log = h.log;
      h.step({{0, shared, shared, 0, 0, 3}});
      h.step({{0, 6, shared + 6, 0}, {2, 30, 30, 0}});
      std::copy_n(h.tables[0].data(), shared / BackendHarness::kBlockSize,
                  h.tables[0].data() + BackendHarness::kBlocksPerSlot);
      h.log = log;
      const auto from_checkpoint = h.step({{1, 6, shared + 6, 1, 3}})[0];
      h.log = log;
      const auto decoded = h.step({{1, 1, shared + 7}, {0, 1, shared + 7}});
      BackendHarness alone(hybrid(), make(on_cpu), 7);
      alone.log = log;
      EXPECT_LT(relative_error(from_checkpoint, alone.step({{0, shared + 6, shared + 6}})[0]), 5e-3);
      EXPECT_LT(relative_error(decoded[0], decoded[1]), 5e-3) << shared;
    }
  }
}

TEST(GatedDelta, a_decode_row_saves_too_and_a_checkpoint_stays_as_it_was) {
  for (const bool on_cpu : {true, false}) {
    BackendHarness h(hybrid(), make(on_cpu), 8);
    h.step({{0, 20, 20}});
    h.step({{0, 1, 21, 1, 0, 1}});
    const StatePoolView& s = h.states;
    const float* saved = s.recurrent + BackendHarness::kSlots * s.recurrent_stride;
    const float* saved_inputs = s.conv + BackendHarness::kSlots * s.conv_stride;
    EXPECT_TRUE(std::equal(s.recurrent, s.recurrent + s.recurrent_stride, saved));
    EXPECT_TRUE(std::equal(s.conv, s.conv + s.conv_stride, saved_inputs));
    const std::vector<float> before(saved, saved + s.recurrent_stride);
    h.step({{0, 1, 22}});
    EXPECT_TRUE(std::equal(before.begin(), before.end(), saved));
    EXPECT_FALSE(std::equal(before.begin(), before.end(), s.recurrent));
  }
}

// Neither its state nor a checkpoint: the host planned the step before it knew that the row had stopped.
TEST(GatedDelta, an_idle_row_touches_no_state) {
  for (const bool on_cpu : {true, false}) {
    BackendHarness with(hybrid(), make(on_cpu), 9), without(hybrid(), make(on_cpu), 9);
    for (BackendHarness* h : {&with, &without}) h->step({{0, 70, 70}, {2, 40, 40}});
    EXPECT_EQ(with.step({{0, 1, 71}, {2, 1, 0, 0, 0, 2}, {1, 30, 30}}), without.step({{0, 1, 71}, {1, 30, 30}}));
    const StatePoolView &a = with.states, &b = without.states;
    const auto row = [](const StatePoolView& s, int64_t slot) { return s.recurrent + slot * s.recurrent_stride; };
    EXPECT_TRUE(std::equal(row(a, 2), row(a, 3), row(b, 2)));
    EXPECT_TRUE(std::isnan(row(a, BackendHarness::kSlots + 1)[0]));
  }
}

TEST(GatedDelta, any_number_of_threads_gives_the_same_bits) {
  std::vector<std::vector<float>> all[3];
  for (int threads = 1; threads <= 3; ++threads) {
    BackendHarness h(hybrid(), create_cpu_backend({.threads = threads, .kv_splits = 2}), 5);
    for (const auto& step : kSteps) {
      for (auto& logits : h.step(step)) all[threads - 1].push_back(logits);
    }
  }
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(all[2], all[0]);
}

TEST(GatedDelta, parts_that_do_not_fit_are_refused) {
  const auto backend = make(true, 1);
  GatedDeltaBlock delta;
  delta.k_heads = 2, delta.v_heads = 3, delta.k_dim = delta.v_dim = 16, delta.conv_width = 4;
  BlockList blocks{delta};
  EXPECT_EQ(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).code(), StatusCode::kInvalidArgument);
  delta.v_heads = 4;
  blocks = {delta};
  EXPECT_NE(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).message().find("do not fit"), std::string::npos);
  delta.k_dim = 20;
  delta.qkv = {.rows = delta.channels(), .cols = 32};
  delta.z = {.rows = 64, .cols = 32}, delta.b = delta.a = {.rows = 4, .cols = 32}, delta.out = {.rows = 32, .cols = 64};
  blocks = {delta};
  EXPECT_EQ(backend->prepare(blocks, {1, 1, 16, 10}, nullptr).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(make(false)->scratch_bytes(blocks, {1, 1, 16, 10}).has_value());
}

}  // namespace
}  // namespace tailrace
