// What a run of tailrace_ids shows: a table of speeds and contracts, and a trace of its steps.
#pragma once

#include <string>

#include "base/step_log.h"
#include "ids/engine_client.h"
#include "ids/workload.h"

namespace tailrace {

// decode tok/s of a request = (output tokens - 1) / (last token's time - first token's); idle times are the device's.
void print_stats(const WorkloadResult& result, const StepLog& log, const EngineStatus& status);

// trace_json of the steps kept.
Status write_trace(const std::string& path, const StepLog& log);

}  // namespace tailrace
