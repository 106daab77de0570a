// StepOp: what a decode step consists of, op by op, with the bytes that each has to read and write.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace tailrace {

struct StepOp {
  const char* label;   // static text; layers' ops of a kind share it
  enum class Kind { kProduct, kAttention, kState, kRoute, kExperts } kind;
  double bytes = 0;    // in the formats that the checkpoint stores
  bool joins_next = false;  // a backend may make it in the launch of the op behind it
};

// In the order in which backends queue them; a mixture's dense branch comes before its experts. Their bytes are those of
// StepBytes::step(rows, context, distinct).
std::vector<StepOp> step_ops(const Model& model, double rows, double context, std::optional<double> distinct = {});

}  // namespace tailrace
