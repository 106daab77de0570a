// The command line of tailrace_ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_host.h"

namespace tailrace {

struct IdsOptions {
  EngineSetup setup;          // device settled, its defaults and the flags applied
  std::string device_reason;  // the GPU's name, or why there is none
  std::string prompt_file;    // one prompt a line, ids apart by spaces or commas; empty: random ids
  int32_t prompts = 1;
  int32_t prompt_len = 128;  // of random prompts
  int32_t output_len = 64;
  uint64_t seed = 1;  // random prompts, sampling, dummy weights
  float temperature = 0;
  std::vector<TokenId> stop_ids;
  int32_t concurrency = 0;  // requests in the engine at a time; 0: all
  double arrivals_ms = 0;   // between two submissions
  bool print_ids = false, stats = false, compare = false, contracts = false, idle_table = false;
  std::string bench_contexts;   // --bench-decode CONTEXTS: see ids/bench_decode.h; empty: not asked
  std::string bench_rows = "1";
  bool per_op = false;
  bool tune = false;     // --tune: no prompts; see engine/tune.h
  std::string tune_out;
  int32_t contract_steps = 10000;  // decode steps of --contracts without an arrival
  bool cpu_reference = false;  // --reference cpu: the answers that --compare compares with are the CPU's
  double max_forced = 0.03;  // share of tokens, for --compare
  double max_outside = 0;    // share of tokens, for --compare
  double tolerance = 0.1;  // of a logit, for --compare: what another order of sums does to activations of 8 or 16 bits
  std::string trace;       // file for a Chrome trace; empty: none
};

// Nothing when --help was asked for and printed. Errors are one line; the process exits with 2.
Expected<std::optional<IdsOptions>> parse_ids_options(int argc, char** argv);

}  // namespace tailrace
