#include "ids/idle_table.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

StepRecord step(int32_t rows, int32_t decode_rows, int64_t gap_ns, IdleCause cause = IdleCause::kMetadata) {
  return {.num_rows = rows, .num_decode_rows = decode_rows, .gap = {.ns = gap_ns, .cause = cause}};
}

TEST(IdleTable, gaps_between_decode_steps_of_one_batch) {
  const std::vector<StepRecord> steps = {step(2, 0, 9'000, IdleCause::kNoWork), step(2, 2, 8'000), step(2, 2, 1'000),
                                         step(2, 2, 3'000), step(2, 2, 0), step(1, 1, 7'000), step(1, 1, 5'000),
                                         step(1, 1, 50'000, IdleCause::kNoWork)};
  const GapSummary two = decode_gaps(steps, 2), one = decode_gaps(steps, 1);
  EXPECT_EQ(two.count, 3u);
  EXPECT_DOUBLE_EQ(two.p50_us, 1);
  EXPECT_DOUBLE_EQ(two.p99_us, 3);
  EXPECT_EQ(one.count, 1u) << "neither the change of rows nor a gap without work";
  EXPECT_DOUBLE_EQ(one.p50_us, 5);
  EXPECT_EQ(mixed_gaps(steps).count, 0u);
}

TEST(IdleTable, gaps_before_mixed_steps) {
  const std::vector<StepRecord> steps = {step(2, 2, 1'000), step(3, 2, 4'000), step(3, 2, 6'000), step(1, 0, 2'000),
                                         step(3, 2, 90'000)};
  const GapSummary mixed = mixed_gaps(steps);
  EXPECT_EQ(mixed.count, 2u) << "an extend step's end is another matter";
  EXPECT_DOUBLE_EQ(mixed.p50_us, 4);
  EXPECT_DOUBLE_EQ(mixed.p99_us, 6);
  EXPECT_EQ(decode_gaps(steps, 2).count, 0u);
}

}  // namespace
}  // namespace tailrace
