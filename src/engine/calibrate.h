// Measures the cost model at boot: a handful of real steps on the real device, before the first request.
#pragma once

#include "engine/model_runner.h"
#include "scheduler/cost_model.h"

namespace tailrace {

// Runs decode-only and extend-only steps of several shapes on scratch rows and fits the model's terms. Leaves no trace that
// a sequence could read: rows are re-initialised when they start. Takes well under a second on a small model.
CostModel measure_cost_model(ModelRunner& runner, int64_t vocab);

}  // namespace tailrace
