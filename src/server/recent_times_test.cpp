#include "server/recent_times.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

constexpr int64_t kHour = 3'600'000'000'000;

TEST(RecentTimes, percentiles_of_what_came_within_the_window) {
  RecentSamples<200> samples;
  EXPECT_EQ(samples.percentiles(kHour).count, 0u);
  for (int i = 1; i <= 100; ++i) samples.add(i);
  const Percentiles p = samples.percentiles(kHour);
  EXPECT_EQ(p.count, 100u);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(samples.percentiles(-1).count, 0u);  // all came before a window that begins later than now
}

TEST(RecentTimes, keeps_the_last_and_bounds_equal_ones) {
  RecentSamples<100> samples;
  for (int i = 0; i < 150; ++i) samples.add(1);
  samples.add(2, 1'000'000);
  const Percentiles p = samples.percentiles(kHour);
  EXPECT_EQ(p.count, 100u);
  EXPECT_EQ(p.p50, 2);
  samples.add(3, 0);
  EXPECT_EQ(samples.percentiles(kHour).p99, 2);
}

}  // namespace
}  // namespace tailrace
