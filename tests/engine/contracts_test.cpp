// The contracts of docs/ENGINE_CONTRACT.md as counters of a running engine: no host block, no allocation, mixed steps where
// they belong, idle time by cause.
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/request_sets.h"

namespace tailrace {
namespace {

class Contracts : public ::testing::Test {
 protected:
  void SetUp() override {
    nlohmann::json config = tiny_gemma3_config();
    config["num_hidden_layers"] = 2;
    config["layer_types"] = {"sliding_attention", "full_attention"};
    write_random_checkpoint(dir_.path(), config, 4);
  }
  TempDir dir_;
};

uint64_t idle_us(const EngineStatus& status) {
  return status.idle_host_late_us + status.idle_metadata_us + status.idle_no_work_us + status.idle_result_wait_us +
         status.idle_launch_us;
}

TEST_F(Contracts, graphs_of_more_rows_than_a_step_has_are_refused) {
  EngineSetup setup = test_setup(dir_.path());
  setup.backend_options.max_graph_rows = setup.limits.max_rows;
  EXPECT_TRUE(inspect_model(setup));
  ++setup.backend_options.max_graph_rows;
  const auto report = inspect_model(setup);
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message().find("--cuda-graph-max-bs"), std::string::npos);
}

TEST_F(Contracts, ten_thousand_decode_steps_neither_block_nor_allocate) {
  TestEngine engine(test_setup(dir_.path()));
  const EngineStatus& status = engine.status();
  engine.run(plain_requests(4));
  engine.wait_idle();
  const int64_t device_bytes = status.device_bytes, pinned_bytes = status.pinned_bytes;
  for (int round = 0; status.decode_steps + status.mixed_steps < 10000; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) requests.push_back(greedy_request(random_prompt(round * 3 + i, 20), 900, -1));
    for (const Answer& answer : engine.run(requests)) EXPECT_EQ(answer.ids.size(), 900u);
  }
  engine.wait_idle();
  EXPECT_EQ(status.host_block.total(), 0u);
  EXPECT_EQ(status.device_alloc_after_ready, 0u);
  EXPECT_EQ(status.device_bytes, device_bytes);
  EXPECT_EQ(status.pinned_bytes, pinned_bytes);
  EXPECT_GT(status.device_bytes, 0);
  EXPECT_LE(status.slab_copies * 32, status.launches) << "steady decode sends nothing to the device";
}

TEST_F(Contracts, claimed_memory_is_the_ledgers) {
  TestEngine engine(test_setup(dir_.path()));
  engine.run({greedy_request({5, 6}, 2)});
  engine.wait_idle();
  const auto claimed = static_cast<double>(engine.status().device_bytes + engine.status().pinned_bytes);
  const MemoryPlan& plan = engine.host().report().memory;
  // Allocations are rounded up to pages of 4 KiB: small vectors take a page each.
  EXPECT_GE(claimed, static_cast<double>(plan.total_bytes()));
  EXPECT_LE(claimed, static_cast<double>(plan.total_bytes()) + 4096.0 * 100);
}

TEST_F(Contracts, prefill_rides_with_decode_rows) {
  TestEngine engine(test_setup(dir_.path()));
  const EngineStatus& status = engine.status();
  const auto victim = engine.submit(greedy_request(random_prompt(1, 5), 900));
  engine.wait(*victim, 1);
  const auto late = engine.submit(greedy_request(random_prompt(2, 500), 4));
  engine.wait(*late);
  engine.wait(*victim);
  engine.wait_idle();
  // Chunks of at most 64 tokens: at least 8 mixed steps, and none of the late prompt's ran without the decode row.
  EXPECT_GE(status.mixed_steps, 8u);
  EXPECT_EQ(status.extend_steps, 1u);
  EXPECT_EQ(status.mixed_fallback.total(), 0u);
}

TEST_F(Contracts, folded_steps_are_counted_as_served_by_another_path) {
  EngineSetup setup = test_setup(dir_.path());
  setup.mixed = MixedMode::kFold;
  TestEngine engine(setup);
  const EngineStatus& status = engine.status();
  const auto victim = engine.submit(greedy_request(random_prompt(1, 5), 400));
  engine.wait(*victim, 1);
  engine.wait(*engine.submit(greedy_request(random_prompt(2, 500), 4)));
  engine.wait(*victim);
  engine.wait_idle();
  uint64_t folded = 0;
  status.mixed_fallback.for_each([&](const char* reason, uint64_t count) { folded += std::string(reason) == "fold" ? count : 0; });
  EXPECT_GE(folded, 8u);
  EXPECT_EQ(folded, status.mixed_steps);
}

TEST_F(Contracts, idle_time_has_a_cause) {
  for (bool overlap : {true, false}) {
    EngineSetup setup = test_setup(dir_.path());
    setup.engine.overlap = overlap;
    TestEngine engine(setup);
    const EngineStatus& status = engine.status();
    const int64_t begin = now_ns();
    engine.run({greedy_request({7}, 200)});
    engine.wait_idle();
    EXPECT_EQ(status.idle_no_work_us, 0u) << "there was work from the first step to the last";
    const uint64_t busy_idle = idle_us(status);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const auto second = engine.submit(greedy_request({8}, 50));
    engine.wait(*second);
    engine.wait_idle();
    const auto elapsed = static_cast<uint64_t>((now_ns() - begin) / 1000);
    EXPECT_GE(status.idle_no_work_us, 29'000u);
    EXPECT_LE(idle_us(status), elapsed);
    // Each of five causes is a sum of nanoseconds, told in whole microseconds.
    EXPECT_LE(static_cast<uint64_t>(second->stream->gpu_idle_ns) / 1000, idle_us(status) - busy_idle + 5);
    if (!overlap) {
      EXPECT_GT(status.idle_host_late_us, 0u) << "without overlap the device waits for the host";
    }
  }
}

TEST_F(Contracts, every_request_ends_once_when_the_engine_stops) {
  for (bool abort : {true, false}) {
    TestEngine engine(test_setup(dir_.path()));
    std::vector<std::shared_ptr<const Request>> requests;
    constexpr int kCount = 60, kTokens = 200;
    for (int i = 0; i < kCount; ++i) {
      requests.push_back(engine.submit(greedy_request(random_prompt(i, 30), kTokens)));
    }
    if (abort) engine.wait(*requests[0], 5);
    engine.stop(abort);
    EXPECT_EQ(engine.status().state, EngineState::kDead);
    int complete = 0;
    for (const auto& request : requests) {
      const Answer& answer = engine.poll(*request);
      EXPECT_TRUE(answer.finished);
      if (answer.finish != FinishReason::kLength) continue;
      ++complete;
      EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kTokens));
    }
    EXPECT_EQ(complete == kCount, !abort);
  }
}

}  // namespace
}  // namespace tailrace
