// StepFeed: what the engine did and how it stands, for the page (GET /debug/steps) and for Perfetto (GET /debug/trace).
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/engine_status.h"
#include "base/request_queue.h"
#include "base/step_log.h"
#include "server/api_error.h"
#include "server/http_exchange.h"
#include "server/recent_times.h"

namespace tailrace {

class StepFeed {
 public:
  // All outlive the feed.
  StepFeed(const EngineStatus& status, const RequestQueue& queue, const RecentTimes& times)
      : status_(status), queue_(queue), times_(times) {}
  ~StepFeed() { stop(); }

  // What the engine writes; outlives the feed. Without one there are no steps, which /debug/trace says.
  void set_log(const StepLog* log) { log_ = log; }

  static constexpr size_t kMaxSteps = 1000;  // of one answer of /debug/steps

  // The steps from `since` on, of many the newest kMaxSteps, and the engine's gauges and counters. A bad query: 400.
  HttpResponse steps(std::string_view query) const;

  // Answers after the `seconds` that the query says, with the steps that ended in that time. At once: 400 for a bad query,
  // 409 while another trace is taken, 503 when there is no log.
  void trace(std::shared_ptr<HttpExchange> exchange, std::string_view query);

  // Ends a trace that is being taken, with what it has, and joins its thread; later ones get 503.
  void stop();

 private:
  struct TraceOf {
    const StepLog& log;
    uint64_t since;  // the first step that ends in its time
    int64_t end_ns;
  };
  void take_trace(const std::shared_ptr<HttpExchange>& exchange, const TraceOf& trace);

  const EngineStatus& status_;
  const RequestQueue& queue_;
  const RecentTimes& times_;
  std::atomic<const StepLog*> log_{nullptr};
  const int64_t origin_ns_ = now_ns();  // 0 of the times in answers
  std::mutex mutex_;
  std::condition_variable changed_;
  bool tracing_ = false, stopping_ = false;  // guarded by mutex_
  std::thread tracer_;                       // guarded by mutex_
};

}  // namespace tailrace
