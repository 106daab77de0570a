// What /health answers: derived from the engine's heartbeat, never by asking the engine.
#pragma once

#include <cstdint>

#include "base/engine_status.h"
#include "server/api_error.h"

namespace tailrace {

struct HealthInput {
  bool model_set = false;
  bool draining = false;
  bool work_pending = false;      // requests wait in the queue
  int64_t work_since_ns = 0;      // when the first request after the last heartbeat was queued: an idle engine is silent
  double timeout_s = 60;          // a busy engine's longest silence
};

struct HealthReport {
  int http_status = 503;
  bool admits = false;            // new requests are taken; a hung engine does not admit
  ApiError refusal;               // of requests that are not admitted
  Json body;                      // {"status": ok|loading|draining|dead|hung, ...}
};

HealthReport report_health(const EngineStatus& engine, const HealthInput& input);

}  // namespace tailrace
