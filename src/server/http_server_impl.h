// HttpServer::Impl: the state that http_server.cpp (life) and http_routing.cpp (requests) share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "server/api_keys.h"
#include "server/cors.h"
#include "server/event_log.h"
#include "server/generation.h"
#include "server/health.h"
#include "server/http_answer.h"
#include "server/http_listener.h"
#include "server/http_server.h"
#include "server/page_guard.h"
#include "server/request_log.h"
#include "server/responses_api.h"
#include "server/step_feed.h"

namespace tailrace {

struct HttpServer::Impl {
  using Exchange = std::shared_ptr<HttpExchange>;

  Impl(const ServeConfig& serve_config, RequestQueue& request_queue, EngineStatus& engine_status);

  // After a large body: not on the thread that let go of it, which may be one of the sockets'.
  void queue_heap_return();

  // What is parsed from the body counts as the body does.
  static JsonLimits limits_of(const HttpRequest& request);

  // Whose stored answers a request may see.
  static ResponsesApi::Owner owner_of(const HttpRequest& request) { return request.key ? request.key->use : nullptr; }

  // Counts a request from its arrival to its end, whatever that is.
  std::shared_ptr<void> activity() {
    active.fetch_add(1);
    return std::shared_ptr<void>(nullptr, [this](void*) { active.fetch_sub(1); });
  }

  std::shared_ptr<const ServedModel> current_model() {
    std::lock_guard lock(mutex);
    return model;
  }

  void send(const Exchange& exchange, HttpResponse response);

  HealthReport health() {
    return report_health(status, {current_model() != nullptr, draining.load(), queue.depth() > 0, work_since_ns.load(),
                                  config.limits.health_timeout_s});
  }

  // To be called before a request is queued.
  void note_work() {
    if (work_since_ns.load() <= status.heartbeat_ns.load()) work_since_ns = now_ns();
  }

  HttpHeaders prepare(HttpRequest& head);
  std::optional<HttpResponse> by_head(const HttpRequest& head) const;
  std::optional<HttpResponse> refuse(const HttpRequest& head);
  void ended(const std::shared_ptr<RequestEntry>& entry);
  void route(Exchange exchange, HttpRequest request);
  void route_get(const Exchange& exchange, const HttpRequest& request);
  void route_post(Exchange exchange, HttpRequest request);
  void answer_post(const Exchange& exchange, const HttpRequest& request, std::shared_ptr<void> guard);
  void abort_requests(const Exchange& exchange, const HttpRequest& request);
  HealthReport ready();
  Json server_info();
  Metrics::Open open_now() const;
  void models(const Exchange& exchange, const HttpRequest& request);
  void stored_response(Exchange exchange, HttpRequest request);
  void generate(const Exchange& exchange, const ServedModel& served, const HttpRequest& request,
                std::shared_ptr<void> guard);
  ApiExpected<GenerationPlan> plan(const ServedModel& served, const HttpRequest& request);
  void watch_timeouts();
  void abort_all(const ApiError& error);

  const ServeConfig config;
  RequestQueue& queue;
  EngineStatus& status;
  Metrics metrics;
  StepFeed feed{status, queue, metrics.recent_times()};
  std::span<const PageFile> page;                                               // set before the listener starts
  SeedSource seeds;  // of sampling
  ResponsesApi responses;
  const Cors cors;
  const PageGuard pages;
  EventLog events;
  RequestLog requests;
  std::unique_ptr<ApiKeys> keys;                                                // set before the listener starts
  std::function<Expected<FlushedCache>()> flush_cache;                          // set before `model`
  std::atomic<int> active{0};
  std::atomic<bool> draining{false};
  std::atomic<bool> heap_return_queued{false};
  std::atomic<int64_t> work_since_ns{0};
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;                                                        // guarded by mutex
  std::shared_ptr<const ServedModel> model;                                     // guarded by mutex
  std::unordered_map<Generation*, std::shared_ptr<Generation>> generations;     // guarded by mutex
  std::shared_ptr<const Json> info = std::make_shared<Json>(Json::object());    // guarded by mutex
  const int64_t started_ns = now_ns();
  std::thread timeouts;
  WorkerPool workers;
  HttpListener listener;
};

}  // namespace tailrace
