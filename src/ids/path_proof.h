// What a run's steps must have been for its path to have been tried: a path that the engine never went shows nothing.
#pragma once

#include <vector>

#include "base/step_log.h"

namespace tailrace {

// Each takes the steps of a run in order.
using PathProof = bool (*)(const std::vector<StepRecord>& steps);

// Two rows or more decode in one step.
bool decoded_together(const std::vector<StepRecord>& steps);
// Rows decode in a step that has a prompt's chunk.
bool decoded_beside_prompt(const std::vector<StepRecord>& steps);
// A row that decodes sat out a step of prompts alone.
bool decode_waited(const std::vector<StepRecord>& steps);

}  // namespace tailrace
