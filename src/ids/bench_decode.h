// Decode speed at given contexts and numbers of rows, beside what the bytes of a step allow: `tailrace bench decode`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_host.h"

namespace tailrace {

struct DecodeBench {
  EngineSetup setup;              // limits.max_rows and context_length are the benchmark's to choose
  std::vector<int32_t> contexts;  // tokens of prompt and answer together; cut to what the model is made for
  std::vector<int32_t> rows = {1};
  int32_t steps = 128;            // tokens decoded
  bool per_op = false;            // also where a step's time goes; only a GPU tells
  uint64_t seed = 1;              // of prompts, each row its own, and of sampling at temperature 1
};

// "1k,8k,131072": numbers of 1 to 2^24, k is 1024. kInvalidArgument names the word.
Expected<std::vector<int32_t>> parse_counts(const std::string& text);

// Prints a line for each number of rows and context, from real prefills, medians of decode-only steps; the bytes of a
// step are those of the experts that were counted. Errors are the engine's, or a context that does not fit its memory.
Status run_bench_decode(const DecodeBench& bench);

}  // namespace tailrace
