// Hazards 2 and 3 on a device whose streams run concurrently with seeded delays: what a forward reads of its slab and of
// the tables is what its own plan said, however late copies are and however far the host runs ahead.
#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/test_fault.h"

namespace tailrace {
namespace {

// A backend that computes nothing and checks, on the stream, the rows and block-table entries it was given.
class WatchingBackend : public HostBackend {
 public:
  const char* name() const override { return "watching"; }
  Expected<size_t> packed_bytes(const TensorView& tensor) const override { return tensor.bytes; }
  Status pack(const TensorView&, void*) const override { return Status(); }
  Expected<size_t> scratch_bytes(const BlockList&, const StepLimits&) const override { return size_t{64}; }
  Status prepare(const BlockList&, const StepLimits&, void*) override { return Status(); }
  std::vector<std::string> decisions(const BlockList&) const override { return {}; }
  const float* last_logits() const override { return nullptr; }

  void forward(Stream& stream, const Batch& batch) override {
    const int expected = next_++;
    stream.run([this, batch, expected] {
      for (int look = 0; look < 3; ++look) {  // a forward reads its tables for a while
        const BatchRow& row = batch.rows[0];
        const int32_t block = batch.groups[0].block_table[row.slot * batch.groups[0].table_stride];
        if (row.kv_len != expected + 1 || block != expected) wrong_++;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      batch.sampled[0].id = expected;
    });
  }

  int wrong() const { return wrong_; }

 private:
  int next_ = 1;
  std::atomic<int> wrong_{0};
};

Model small_model() {
  Model model;
  model.config.vocab = 16;
  model.groups = {{.window = 0, .num_layers = 1, .kv_heads = 1, .head_dim = 16}};
  return model;
}

MemoryPlan small_plan() {
  MemoryPlan plan;
  plan.context_length = 256;
  plan.max_step_tokens = 8;
  plan.kv.groups = {{.window = 0, .num_blocks = 8}};
  plan.step = {.max_rows = 2, .max_step_tokens = 8, .context_length = 256, .vocab = 16};
  plan.slab = {.max_rows = 2, .num_groups = 1, .max_log_patch_tokens = 64, .max_patch_blocks = 64};
  return plan;
}

// Runs `steps` steps, two in flight, each of which re-points the one row's first block; returns what went wrong.
std::string run_steps(uint64_t seed, int steps, StagingMode mode) {
  const Model model = small_model();
  auto device = create_cpu_device(
      {.thread_per_stream = true, .delay_seed = seed, .max_delay_us = 400, .memory_bytes = 1 << 24});
  WatchingBackend backend;
  auto runner = ModelRunner::create(*device, backend, model, small_plan(), mode);
  if (!runner) return runner.error().message();
  std::vector<LaunchedStep> launched;
  int wrong_ids = 0;
  for (int i = 1; i <= steps; ++i) {
    StepPlan step{.step = static_cast<uint64_t>(i)};
    step.rows = {{.slot = 0, .computed_len = i, .q_len = 1, .samples = true}};
    step.num_decode_rows = step.num_tokens = 1;
    step.block_patches = {{.group = 0, .slot = 0, .first_index = 0, .blocks = {i}}};
    launched.push_back((*runner)->launch(step));
    if (i >= 2) {
      launched[i - 2].done->wait("step_result");
      if (launched[i - 2].sampled[0].id != i - 1) wrong_ids++;
    }
  }
  runner->reset();
  if (backend.wrong() > 0) return std::to_string(backend.wrong()) + " reads saw another step's rows or blocks";
  return wrong_ids > 0 ? "a result slot was overwritten" : "";
}

std::string run_seeds(int seeds, StagingMode mode = StagingMode::kDevice) {
  for (int seed = 1; seed <= seeds; ++seed) {
    if (std::string violation = run_steps(seed, 30, mode); !violation.empty()) return violation;
  }
  return "";
}

TEST(ModelRunner, hazard_2_a_slab_is_refilled_only_after_its_copy) {
  EXPECT_EQ(run_seeds(8), "");
  if (!kRacingFaults) return;
  ScopedTestFault fault(Fault::kSlabReuseEarly);
  EXPECT_NE(run_seeds(8), "");
}

TEST(ModelRunner, hazard_3_patches_are_ordered_against_the_running_forward) {
  EXPECT_EQ(run_seeds(8), "");
  if (!kRacingFaults) return;
  ScopedTestFault fault(Fault::kPatchRaces);
  EXPECT_NE(run_seeds(8), "");
}

TEST(ModelRunner, every_staging_mode_gives_a_step_its_own_rows) {
  for (StagingMode mode : {StagingMode::kPacked, StagingMode::kPinned, StagingMode::kBlocking}) {
    EXPECT_EQ(run_seeds(4, mode), "") << "mode " << static_cast<int>(mode);
  }
}

// Contract 1 sees what --debug-staging does: three waits a step when it blocks, none otherwise.
TEST(ModelRunner, blocking_staging_is_counted_as_host_blocks_and_the_others_send_without) {
  struct Case { StagingMode mode; uint64_t slabs, host_blocks; };
  constexpr int kSteps = 20;
  for (const Case& c : {Case{StagingMode::kDevice, 1, 0}, Case{StagingMode::kPacked, kSteps, 0},
                        Case{StagingMode::kPinned, kSteps, 0}, Case{StagingMode::kBlocking, kSteps, 3 * kSteps}}) {
    const Model model = small_model();
    auto device = create_cpu_device({.memory_bytes = 1 << 24});
    WatchingBackend backend;
    auto runner = ModelRunner::create(*device, backend, model, small_plan(), c.mode);
    ASSERT_TRUE(runner.has_value());
    device->set_ready();
    for (int i = 1; i <= kSteps; ++i) {
      StepPlan step{.step = static_cast<uint64_t>(i)};
      step.rows = {{.slot = 0, .computed_len = i, .q_len = 1, .samples = true}};
      step.num_decode_rows = step.num_tokens = 1;
      (*runner)->launch(step).done->wait("step_result");
    }
    EXPECT_EQ((*runner)->slabs(), c.slabs) << "mode " << static_cast<int>(c.mode);
    EXPECT_EQ(device->counters().host_blocks, c.host_blocks) << "mode " << static_cast<int>(c.mode);
    EXPECT_EQ(device->counters().allocs_after_ready, 0u);
  }
}

// A decode step whose rows are those of the step before, one token further, sends nothing to the device.
TEST(ModelRunner, only_steps_that_change_something_need_a_slab) {
  const Model model = small_model();
  auto device = create_cpu_device({.memory_bytes = 1 << 24});
  class : public WatchingBackend {
   public:
    void forward(Stream& stream, const Batch& batch) override {
      stream.run([this, batch] { seen.push_back({batch.rows, batch.rows + batch.num_rows}); });
    }
    std::vector<std::vector<BatchRow>> seen;
  } backend;
  auto runner = ModelRunner::create(*device, backend, model, small_plan());
  ASSERT_TRUE(runner.has_value());
  const PlanRow a{.slot = 1, .computed_len = 5, .q_len = 1, .samples = true}, b{.slot = 0, .computed_len = 9, .q_len = 1, .samples = true};
  const auto later = [](PlanRow row, int steps) { row.computed_len += steps; return row; };
  const PlanRow chunk{.slot = 0, .computed_len = 0, .q_len = 3, .samples = true};
  struct Case { std::vector<PlanRow> rows; int decode_rows; bool patched, slab; };
  const std::vector<Case> cases = {
      {{a, chunk}, 1, false, true},                              // the first
      {{later(a, 1), later(b, 1)}, 2, false, true},              // after a mixed step
      {{later(a, 2), later(b, 2)}, 2, false, false},             // nothing but a token each
      {{later(a, 3), later(b, 3)}, 2, true, true},               // a block is handed out
      {{later(a, 4), later(b, 4)}, 2, false, false},
      {{later(a, 5)}, 1, false, true},                           // a row has ended
      {{later(a, 6)}, 1, false, false},
      {{later(a, 8)}, 1, false, true},                           // not one token further
  };
  uint64_t slabs = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    StepPlan step{.step = i + 1, .rows = cases[i].rows, .num_decode_rows = cases[i].decode_rows};
    for (const PlanRow& row : step.rows) step.num_tokens += row.q_len;
    if (cases[i].patched) step.block_patches = {{.group = 0, .slot = 0, .first_index = 0, .blocks = {3}}};
    (*runner)->launch(step).done->wait("step_result");
    slabs += cases[i].slab;
    EXPECT_EQ((*runner)->slabs(), slabs) << "step " << i;
    ASSERT_EQ(backend.seen.size(), i + 1);
    for (size_t r = 0; r < step.rows.size(); ++r) {
      EXPECT_EQ(backend.seen[i][r].slot, step.rows[r].slot);
      EXPECT_EQ(backend.seen[i][r].kv_len, step.rows[r].kv_len()) << "step " << i << ", row " << r;
    }
  }
}

}  // namespace
}  // namespace tailrace
