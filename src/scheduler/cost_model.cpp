#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tailrace {
namespace {

constexpr double kLearningRate = 0.02, kOverrunRate = 0.1;

double decode_us(const CostModel& model, const StepShape& shape) {
  return model.base_us + model.decode_row_us * shape.decode_rows +
         model.decode_kv_us * static_cast<double>(shape.decode_kv_tokens);
}

double extend_us(const CostModel& model, const StepShape& shape) {
  if (shape.extend_tokens == 0) return 0;
  return model.extend_base_us + model.extend_token_us * shape.extend_tokens +
         model.extend_kv_us * static_cast<double>(shape.extend_kv_tokens) +
         model.extend_pair_us * static_cast<double>(shape.extend_kv_pairs);
}

}  // namespace

double CostModel::predict_us(const StepShape& shape) const {
  return decode_us(*this, shape) + extend_us(*this, shape);
}

int32_t CostModel::max_extend_tokens(const StepShape& shape, int64_t computed_len, double budget_us,
                                     int32_t limit) const {
  const double left = budget_us - predict_us(shape) - extend_kv_us * static_cast<double>(computed_len) -
                      (shape.extend_tokens == 0 ? extend_base_us : 0);
  if (left <= 0 || limit <= 0) return 0;
  // token * n + pair * n * (computed + n / 2) = left, solved for n
  const double a = extend_pair_us / 2;
  const double b = extend_token_us + extend_pair_us * static_cast<double>(computed_len);
  double n = limit;
  if (a > 0) {
    n = (std::sqrt(b * b + 4 * a * left) - b) / (2 * a);
  } else if (b > 0) {
    n = left / b;
  }
  int32_t tokens = static_cast<int32_t>(std::clamp(n, 0.0, static_cast<double>(limit)));
  while (tokens > 0) {  // the root may round up past the budget by one
    StepShape with = shape;
    with.extend_tokens += tokens;
    with.extend_kv_tokens += computed_len;
    with.extend_kv_pairs += int64_t(tokens) * (computed_len + tokens / 2);
    if (predict_us(with) <= budget_us) break;
    --tokens;
  }
  return tokens;
}

void CostModel::observe(const StepShape& shape, double measured_us) {
  const double decode_part = decode_us(*this, shape);
  const double extend_part = extend_us(*this, shape);
  if (!(measured_us > 0) || !std::isfinite(measured_us) || decode_part <= 0) return;
  const bool has_extend = extend_part > 0;
  // Right after a chunk a decode step finds other data in the caches: not the step that a bound is a multiple of.
  const bool cold = std::exchange(after_extend, has_extend) && !has_extend;
  if (cold) return;
  if (!has_extend) {
    const double factor = 1 + kLearningRate * (std::clamp(measured_us / decode_part, 0.5, 2.0) - 1);
    base_us *= factor;
    decode_row_us *= factor;
    decode_kv_us *= factor;
    return;
  }
  // A step with extend rows says little about the decode terms: only its remainder is attributed, to the extend terms.
  const double ratio = std::clamp((measured_us - decode_part) / extend_part, 0.5, 2.0);
  const bool overrun = ratio > 1, again = std::exchange(after_overrun, overrun) && overrun;
  const double factor = 1 + (again ? kOverrunRate : kLearningRate) * (ratio - 1);
  extend_base_us *= factor;
  extend_token_us *= factor;
  extend_kv_us *= factor;
  extend_pair_us *= factor;
}

}  // namespace tailrace
