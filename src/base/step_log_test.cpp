#include "base/step_log.h"

#include <gtest/gtest.h>

#include <thread>

namespace tailrace {
namespace {

TEST(StepLog, keeps_the_last_steps_in_order) {
  StepLog log(3);
  for (uint64_t step = 1; step <= 2; ++step) log.add({.step = step});
  EXPECT_EQ(log.records().size(), 2u);
  for (uint64_t step = 3; step <= 5; ++step) log.add({.step = step});
  const auto records = log.records();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records.front().step, 3u);
  EXPECT_EQ(records.back().step, 5u);
  EXPECT_EQ(log.total(), 5u);
}

TEST(StepLog, records_from_a_place_on_and_the_newest_of_too_many) {
  StepLog log(8);
  for (uint64_t step = 0; step < 10; ++step) log.add({.step = step});
  const auto later = log.part(7).steps;
  ASSERT_EQ(later.size(), 3u);
  EXPECT_EQ(later.front().step, 7u);
  const auto newest = log.part(0, 2).steps;
  ASSERT_EQ(newest.size(), 2u);
  EXPECT_EQ(newest.front().step, 8u);
  EXPECT_EQ(log.part(7).next, 10u);
  EXPECT_TRUE(log.part(10).steps.empty());
  EXPECT_TRUE(log.part(11).steps.empty());
}

TEST(StepLog, a_reader_never_sees_half_a_step) {
  constexpr uint64_t kSteps = 200'000;
  StepLog log(4);
  std::thread writer([&] {
    for (uint64_t i = 1; i <= kSteps; ++i) {
      const auto value = static_cast<int64_t>(i);
      log.add({.step = i, .plan_ns = value, .processed_ns = value, .gap = {.ns = value}});
    }
  });
  uint64_t seen = 0, last = 0;
  while (log.total() < kSteps) {
    for (const StepRecord& record : log.records()) {
      const auto value = static_cast<int64_t>(record.step);
      ASSERT_EQ(record.plan_ns, value);
      ASSERT_EQ(record.processed_ns, value);
      ASSERT_EQ(record.gap.ns, value);
      last = std::max(last, record.step);
      ++seen;
    }
  }
  writer.join();
  EXPECT_EQ(log.records().back().step, kSteps);
  EXPECT_LE(last, kSteps);
}

}  // namespace
}  // namespace tailrace
