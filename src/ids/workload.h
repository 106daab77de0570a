// Workload: the requests of a run, submitted at their times, with what came back and when.
#pragma once

#include <vector>

#include "ids/engine_client.h"
#include "ids/ids_options.h"

namespace tailrace {

struct TimedAnswer {
  Answer answer;
  int32_t prompt_len = 0;
  int64_t submitted_ns = 0, first_ns = 0, finished_ns = 0;  // first_ns 0: no token came
};

struct WorkloadResult {
  std::vector<TimedAnswer> answers;  // in the order of the requests
  int64_t begun_ns = 0, ended_ns = 0;
};

// The requests of the prompt file, or random ones of prompt_len tokens. spread: random lengths 1..prompt_len instead.
// Errors name the file and the line, or the id that the vocabulary does not have.
Expected<std::vector<Request>> make_requests(const IdsOptions& options, int64_t vocab, bool spread);

// Submits the requests in order, at most `concurrency` at a time (0: all) and `arrivals_ms` apart, and waits for all.
// kUnavailable when nothing ends for ten minutes.
Expected<WorkloadResult> run_workload(EngineClient& client, const std::vector<Request>& requests, int32_t concurrency,
                                      double arrivals_ms);

}  // namespace tailrace
