#include "ids/path_proof.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

StepRecord step(int32_t decode_rows, int32_t extend_rows) {
  StepRecord s;
  s.num_decode_rows = decode_rows;
  s.num_rows = decode_rows + extend_rows;
  return s;
}

TEST(PathProof, one_request_after_another_is_neither_batched_nor_mixed_nor_alternating) {
  const std::vector<StepRecord> steps = {step(0, 1), step(1, 0), step(1, 0), step(0, 1), step(1, 0)};
  EXPECT_FALSE(decoded_together(steps));
  EXPECT_FALSE(decoded_beside_prompt(steps));
  EXPECT_FALSE(decode_waited(steps));
}

TEST(PathProof, two_rows_that_decode_are_a_batch) { EXPECT_TRUE(decoded_together({step(0, 2), step(2, 0)})); }

TEST(PathProof, a_chunk_beside_a_decode_row_is_mixed) { EXPECT_TRUE(decoded_beside_prompt({step(0, 1), step(1, 1)})); }

TEST(PathProof, a_decode_row_that_sat_out_a_prompt_waited) {
  EXPECT_TRUE(decode_waited({step(0, 1), step(1, 0), step(0, 1), step(2, 0)}));
  EXPECT_FALSE(decode_waited({step(0, 2), step(2, 0), step(2, 0)}));              // no prompt between
  EXPECT_FALSE(decode_waited({step(0, 1), step(1, 0), step(0, 2), step(2, 0)}));  // the first one had ended
}

}  // namespace
}  // namespace tailrace
