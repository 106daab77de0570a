#include "server/step_feed.h"

#include <charconv>
#include <optional>
#include <utility>

#include "server/http_answer.h"
#include "server/json.h"
#include "server/query.h"

namespace tailrace {
namespace {

constexpr int kMaxTraceSeconds = 60;
constexpr auto kTraceTurn = std::chrono::milliseconds(50);  // how soon a client that left is noticed

// A parameter of the query as a number of at most `most`; none: `absent`.
ApiExpected<uint64_t> number_of(std::string_view query, std::string_view name, uint64_t most,
                                std::optional<uint64_t> absent) {
  const auto bad = [&](const std::string& what) {
    return api_fail({400, std::string(name) + what, std::string(name), "invalid_value"});
  };
  const auto digits = Query(query).find(name);
  if (!digits && absent) return *absent;
  if (!digits) return bad(" is required: " + std::string(name) + "=NUMBER.");
  uint64_t value = 0;
  const char* const last = digits->data() + digits->size();
  const auto [end, error] = std::from_chars(digits->data(), last, value);
  if (digits->empty() || error != std::errc() || end != last || value > most) {
    return bad(" must be a whole number up to " + std::to_string(most) + ".");
  }
  return value;
}

constexpr const char* kFields[] = {"step",       "rows",        "decode_rows", "tokens",  "slab",    "plan_ns",
                                   "launch_ns",  "launched_ns", "begun_ns",    "done_ns", "result_ns", "processed_ns",
                                   "idle_ns",    "idle_cause"};

Json to_row(const StepRecord& s, int64_t origin) {
  return Json::array({s.step, s.num_rows, s.num_decode_rows, s.num_tokens, s.has_slab ? 1 : 0, s.plan_ns - origin,
                      s.launch_ns - origin, s.launched_ns - origin, s.begun_ns - origin, s.done_ns - origin,
                      s.result_ns - origin, s.processed_ns - origin, s.gap.ns, static_cast<int>(s.gap.cause)});
}

Json to_json(const Percentiles& p) {
  return {{"count", p.count}, {"p50", p.p50 * 1e3}, {"p90", p.p90 * 1e3}, {"p99", p.p99 * 1e3}};
}

Json kv_groups(const EngineStatus& status) {
  Json groups = Json::array();
  for (int i = 0; i < status.num_kv_groups.load(std::memory_order_acquire); ++i) {
    const KvGroupStatus& group = status.kv[i];
    groups.push_back({{"window", group.window.load()},
                      {"total", group.total.load()},
                      {"free", group.free.load()},
                      {"cached", group.cached.load()},
                      {"owned", group.owned.load()}});
  }
  return groups;
}

Json engine_json(const EngineStatus& status, size_t waiting) {
  return {{"ready", status.state.load() == EngineState::kReady},
          {"running", status.running.load()},
          {"waiting", waiting},
          {"inflight_steps", status.inflight_steps.load()},
          {"prompt_tokens", status.prompt_tokens.load()},
          {"cached_tokens", status.cached_tokens.load()},
          {"computed_tokens", status.computed_tokens.load()},
          {"generated_tokens", status.generated_tokens.load()},
          {"preemptions", status.preemptions.load()},
          {"decode_steps", status.decode_steps.load()},
          {"extend_steps", status.extend_steps.load()},
          {"mixed_steps", status.mixed_steps.load()},
          {"slab_copies", status.slab_copies.load()},
          {"device_bytes", status.device_bytes.load()},
          {"kv", kv_groups(status)}};
}

}  // namespace

HttpResponse StepFeed::steps(std::string_view query) const {
  auto since = number_of(query, "since", UINT64_MAX, 0);
  if (!since) return to_response(since.error());
  const StepLog* log = log_;
  const StepLog::Part part = log != nullptr ? log->part(*since, kMaxSteps) : StepLog::Part();
  Json rows = Json::array();
  for (const StepRecord& record : part.steps) rows.push_back(to_row(record, origin_ns_));
  Json causes = Json::array();
  for (int i = 0; i < kNumIdleCauses; ++i) causes.push_back(idle_cause_name(static_cast<IdleCause>(i)));
  HttpResponse response;
  response.body = dump_json({{"next", part.next},
                             {"now_ns", now_ns() - origin_ns_},
                             {"fields", kFields},
                             {"causes", std::move(causes)},
                             {"steps", std::move(rows)},
                             {"engine", engine_json(status_, queue_.depth())},
                             {"ttft_ms", to_json(times_.ttft.percentiles(RecentTimes::kWindowNs))},
                             {"inter_token_ms", to_json(times_.inter_token.percentiles(RecentTimes::kWindowNs))}});
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

void StepFeed::trace(std::shared_ptr<HttpExchange> exchange, std::string_view query) {
  auto seconds = number_of(query, "seconds", kMaxTraceSeconds, std::nullopt);
  if (seconds && *seconds == 0) seconds = api_fail({400, "seconds must be 1 to 60.", "seconds", "invalid_value"});
  if (!seconds) return exchange->respond(to_response(seconds.error()));
  const StepLog* log = log_;
  if (log == nullptr) {
    return exchange->respond(to_response({503, "There are no steps yet: the model is not loaded.", "", "unavailable"}));
  }
  std::lock_guard lock(mutex_);
  if (stopping_) return exchange->respond(to_response(shutting_down()));
  if (tracing_) {
    return exchange->respond(to_response({409, "Another trace is being taken; ask again later.", "", "trace_running"}));
  }
  if (tracer_.joinable()) tracer_.join();  // has ended, or is about to: only its answer follows its tracing_ = false
  tracing_ = true;
  const int64_t end_ns = now_ns() + static_cast<int64_t>(*seconds) * 1'000'000'000;
  const TraceOf trace{.log = *log, .since = log->total(), .end_ns = end_ns};
  tracer_ = std::thread([this, exchange = std::move(exchange), trace] { take_trace(exchange, trace); });
}

void StepFeed::take_trace(const std::shared_ptr<HttpExchange>& exchange, const TraceOf& trace) {
  {
    std::unique_lock lock(mutex_);
    while (!stopping_ && now_ns() < trace.end_ns && !exchange->disconnected()) changed_.wait_for(lock, kTraceTurn);
  }
  const bool wanted = !exchange->disconnected();
  HttpResponse response;
  if (wanted) response.body = trace_json(trace.log.part(trace.since).steps);
  response.headers.emplace_back("Content-Disposition", "attachment; filename=\"tailrace-trace.json\"");
  {
    std::lock_guard lock(mutex_);
    tracing_ = false;  // before the answer: who has read it may ask for the next
  }
  if (wanted) exchange->respond(std::move(response));
}

void StepFeed::stop() {
  std::thread tracer;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tracer = std::move(tracer_);
  }
  changed_.notify_all();
  if (tracer.joinable()) tracer.join();
}

}  // namespace tailrace
