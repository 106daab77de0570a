// Linear model of a step's time, measured at boot and corrected while serving. It bounds the prefill share of mixed
// steps (contract 3: a mixed step lasts at most 4x the decode-only step of the same rows).
#pragma once

#include <cstdint>

namespace tailrace {

// The features of a step that its time depends on.
struct StepShape {
  int32_t decode_rows = 0;
  int64_t decode_kv_tokens = 0;    // sum of kv_len over decode rows
  int32_t extend_tokens = 0;
  int64_t extend_kv_tokens = 0;    // sum of computed_len over extend rows: their keys are read however short the chunk
  int64_t extend_kv_pairs = 0;     // sum over extend rows of q_len * (computed_len + q_len / 2)
};

struct CostModel {
  // us = base + decode_row * rows + decode_kv * kv_tokens
  //      + extend_base (where there are extend rows) + extend_token * tokens + extend_kv * extend_kv_tokens
  //      + extend_pair * kv_pairs
  double base_us = 200;
  double decode_row_us = 50;
  double decode_kv_us = 0.01;
  double extend_base_us = 0;  // a GPU's decode steps are captured graphs, others are not
  double extend_token_us = 50;
  double extend_kv_us = 0;
  double extend_pair_us = 0.005;

  double predict_us(const StepShape& shape) const;
  // The largest extend chunk (tokens, 0..limit) over `computed_len` cached tokens that keeps `shape` plus the chunk within
  // budget_us.
  int32_t max_extend_tokens(const StepShape& shape, int64_t computed_len, double budget_us, int32_t limit) const;
  // Feeds back one measured step, in the order in which they ran: scales the terms towards what is seen, quickly where the
  // model was too hopeful twice in a row (once may be the machine's noise).
  void observe(const StepShape& shape, double measured_us);

  bool after_extend = false;  // of the step observed last: it had extend rows
  bool after_overrun = false;  // with extend rows, it took longer than predicted
};

}  // namespace tailrace
