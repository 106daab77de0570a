#include "ids/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace tailrace {
namespace {

TEST(Report, a_trace_has_a_lane_for_each_stage_and_the_device) {
  StepLog log(4);
  log.add({.step = 1,
           .num_rows = 2,
           .num_decode_rows = 1,
           .num_tokens = 9,
           .plan_ns = 1'000'000,
           .launch_ns = 1'003'000,
           .launched_ns = 1'010'000,
           .result_ns = 1'900'000,
           .processed_ns = 1'902'500,
           .begun_ns = 1'020'000,
           .done_ns = 1'890'000});
  log.add({.step = 2,
           .num_rows = 2,
           .num_decode_rows = 2,
           .num_tokens = 2,
           .has_slab = false,
           .plan_ns = 1'100'000,
           .launch_ns = 1'101'000,
           .launched_ns = 1'102'000,
           .result_ns = 2'000'000,
           .processed_ns = 2'001'000,
           .begun_ns = 1'891'500,
           .done_ns = 1'995'000,
           .gap = {.ns = 1500, .cause = IdleCause::kMetadata}});
  const auto path = std::filesystem::temp_directory_path() / ("tailrace_trace_" + std::to_string(getpid()));
  ASSERT_TRUE(write_trace(path.string(), log).ok());
  const auto trace = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  std::map<std::pair<int, int>, int> events;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") events[{event["pid"], event["tid"]}]++;
  }
  EXPECT_EQ(events, (std::map<std::pair<int, int>, int>{{{1, 1}, 2}, {{1, 2}, 2}, {{1, 3}, 2}, {{2, 1}, 2}, {{2, 2}, 1}}));
  const auto& last = trace["traceEvents"].back();
  EXPECT_EQ(last["name"], "decode");
  EXPECT_DOUBLE_EQ(last["ts"], 891.5);
  EXPECT_DOUBLE_EQ(last["dur"], 103.5);
  EXPECT_DOUBLE_EQ(last["args"]["idle_before_us"], 1.5);
  EXPECT_EQ(last["args"]["idle_cause"], "metadata");
  EXPECT_EQ(last["args"]["slab"], false);
}

TEST(Report, a_trace_that_cannot_be_written_is_an_error) {
  EXPECT_FALSE(write_trace("/no/such/dir/trace.json", StepLog(1)).ok());
}

}  // namespace
}  // namespace tailrace
