// Which row of a step a token belongs to, and where in the sequence.
#pragma once

#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {

// The row that token t belongs to.
__device__ __forceinline__ int row_of(const StepRows& s, int t) {
  if (t < s.num_decode_rows) return t;
  int low = s.num_decode_rows, high = s.num_rows;  // rows[low].q_start <= t
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (s.rows[middle].q_start <= t ? low : high) = middle;
  }
  return low;
}
__device__ __forceinline__ int position_of(const BatchRow& row, int t) {
  return row.kv_len - row.q_len + (t - row.q_start);
}

}  // namespace tailrace::cuda
