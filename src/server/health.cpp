#include "server/health.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"

namespace tailrace {
namespace {

HealthReport not_ready(const char* status, ApiError refusal) {
  HealthReport report;
  report.body = {{"status", status}, {"message", refusal.message}};
  report.refusal = std::move(refusal);
  return report;
}

ApiError unavailable(std::string message) { return {503, std::move(message), "", "unavailable"}; }

}  // namespace

HealthReport report_health(const EngineStatus& engine, const HealthInput& input) {
  const EngineState state = engine.state.load();
  if (state == EngineState::kDead) {
    return not_ready("dead", input.draining ? shutting_down() : unavailable("The engine has stopped."));
  }
  if (input.draining) return not_ready("draining", shutting_down());
  if (state == EngineState::kLoading || !input.model_set) {
    HealthReport report = not_ready("loading", unavailable("The model is loading."));
    const int64_t total = engine.load_total_bytes.load();
    if (total > 0) report.body["progress"] = static_cast<double>(engine.load_done_bytes.load()) / static_cast<double>(total);
    return report;
  }
  const int64_t last_ns = std::max(engine.heartbeat_ns.load(), input.work_since_ns);
  const double silence_s = static_cast<double>(now_ns() - last_ns) * 1e-9;
  const bool busy = !engine.idle.load() || input.work_pending;
  if (busy && silence_s > input.timeout_s) {
    return not_ready("hung", unavailable("The engine has made no progress for " +
                                         std::to_string(static_cast<int>(silence_s)) + " s."));
  }
  HealthReport report;
  report.http_status = 200;
  report.admits = true;
  report.body = {{"status", "ok"}, {"running", engine.running.load()}, {"waiting", engine.waiting.load()}};
  return report;
}

}  // namespace tailrace
