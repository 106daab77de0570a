#include "server/http_server.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>

#include "base/check.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/test_fault.h"
#include "server/body_budget.h"
#include "server/chat_prompt.h"
#include "server/generation.h"
#include "server/health.h"
#include "server/http_answer.h"
#include "server/http_listener.h"
#include "server/routes.h"

namespace tailrace {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kFlushTime = std::chrono::milliseconds(500);  // for the last bytes of answers when draining ends

HttpResponse json_response(const Json& json, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = dump_json(json);
  return response;
}

int tokenizer_threads(const HttpOptions& options) {
  if (options.tokenizer_threads > 0) return options.tokenizer_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

uint64_t first_seed(const EngineOptions& engine) {
  if (engine.has_random_seed) return engine.random_seed;
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

}  // namespace

struct HttpServer::Impl {
  using Exchange = std::shared_ptr<HttpExchange>;

  Impl(const ServeConfig& serve_config, RequestQueue& request_queue, EngineStatus& engine_status)
      : config(serve_config), queue(request_queue), status(engine_status),
        metrics(engine_status, serve_config.model.served_name), seeds(first_seed(serve_config.engine)),
        workers(tokenizer_threads(serve_config.http)),
        listener(serve_config.http,
                 [this](Exchange exchange, HttpRequest request) { route(std::move(exchange), std::move(request)); },
                 {.refuse = [this](const HttpRequest& head) { return by_head(head); },
                  .always_answered = [](const HttpRequest& head) { return always_answered(head.path); }},
                 [this] { queue_heap_return(); }) {}

  // After a large body: not on the thread that let go of it, which may be one of the sockets'.
  void queue_heap_return() {
    if (heap_return_queued.exchange(true)) return;
    workers.submit([this] {
      heap_return_queued = false;
      return_free_heap();
    });
  }

  // What is parsed from the body counts as the body does.
  static JsonLimits limits_of(const HttpRequest& request) {
    JsonLimits limits;
    limits.take_memory = [&request](size_t document_bytes) {
      return request.body_share ? request.body_share->grow_to(static_cast<int64_t>(request.body.size() + document_bytes))
                                : Status();
    };
    return limits;
  }

  // Counts a request from its arrival to its end, whatever that is.
  std::shared_ptr<void> activity() {
    active.fetch_add(1);
    return std::shared_ptr<void>(nullptr, [this](void*) { active.fetch_sub(1); });
  }

  std::shared_ptr<const ServedModel> current_model() {
    std::lock_guard lock(mutex);
    return model;
  }

  void note_answer(const HttpResponse& response) {
    metrics.http_answer(response.status);
    if (response.status < 400) return;
    log(response.status == 500 ? LogLevel::kError : LogLevel::kDebug,
        "answered " + std::to_string(response.status) + " " + response.body);
  }

  void send(const Exchange& exchange, HttpResponse response) {
    note_answer(response);
    respond(exchange, std::move(response));
  }

  void respond(const Exchange& exchange, HttpResponse response) const {
    if (draining.load()) response.close = true;
    exchange->respond(std::move(response));
  }

  HealthReport health() {
    return report_health(status, {current_model() != nullptr, draining.load(), queue.depth() > 0, work_since_ns.load(),
                                  config.limits.health_timeout_s});
  }

  // To be called before a request is queued.
  void note_work() {
    if (work_since_ns.load() <= status.heartbeat_ns.load()) work_since_ns = now_ns();
  }

  void log(LogLevel level, const std::string& text) const {
    if (level <= config.log_level) std::fprintf(stderr, "tailrace: %s\n", text.c_str());
  }

  std::optional<HttpResponse> by_head(const HttpRequest& head);
  void route(Exchange exchange, HttpRequest request);
  void route_get(const Exchange& exchange, const HttpRequest& request);
  void route_post(Exchange exchange, HttpRequest request);
  void answer_post(const Exchange& exchange, const HttpRequest& request, std::shared_ptr<void> guard);
  void models(const Exchange& exchange, const std::string& path);
  void generate(const Exchange& exchange, const ServedModel& served, const HttpRequest& request,
                std::shared_ptr<void> guard);
  ApiExpected<GenerationPlan> plan(const ServedModel& served, const HttpRequest& request);
  ApiExpected<Json> tokenize(const ServedModel& served, const HttpRequest& request);
  ApiExpected<Json> detokenize(const ServedModel& served, const HttpRequest& request);
  void watch_timeouts();
  void abort_all(const ApiError& error);

  const ServeConfig config;
  RequestQueue& queue;
  EngineStatus& status;
  Metrics metrics;
  SeedSource seeds;
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
  std::thread timeouts;
  WorkerPool workers;
  HttpListener listener;
};

std::optional<HttpResponse> HttpServer::Impl::by_head(const HttpRequest& head) {
  auto response = answer_by_head(head, config.http.api_key, [this] { return health().http_status; });
  if (response) note_answer(*response);
  return response;
}

void HttpServer::Impl::route(Exchange exchange, HttpRequest request) {
  if (auto response = by_head(request)) return respond(exchange, std::move(*response));
  request.method == "GET" ? route_get(exchange, request) : route_post(std::move(exchange), std::move(request));
}

void HttpServer::Impl::route_get(const Exchange& exchange, const HttpRequest& request) {
  if (request.path == "/health") {
    const HealthReport report = health();
    return send(exchange, json_response(report.body, report.http_status));
  }
  if (request.path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics.serialize();
    return send(exchange, std::move(response));
  }
  models(exchange, request.path);
}

void HttpServer::Impl::models(const Exchange& exchange, const std::string& path) {
  const auto served = current_model();
  if (const HealthReport report = health(); !served || !report.admits) {
    return send(exchange, to_response(report.refusal));
  }
  const Json entry = {{"id", served->name}, {"object", "model"}, {"created", served->created_s},
                      {"owned_by", "tailrace"}, {"max_model_len", served->context_length}};
  constexpr std::string_view kList = "/v1/models";
  if (path == kList) return send(exchange, json_response({{"object", "list"}, {"data", Json::array({entry})}}));
  const std::string name = path.substr(kList.size() + 1);
  if (name.empty()) return send(exchange, to_response({404, "There is no " + path + " here.", "", "not_found"}));
  if (Status found = check_model_name(*served, name); !found.ok()) {
    return send(exchange, to_response({404, found.message(), "model", "model_not_found"}));
  }
  send(exchange, json_response(entry));
}

void HttpServer::Impl::route_post(Exchange exchange, HttpRequest request) {
  if (const HealthReport report = health(); !report.admits) {
    return send(exchange, to_response(report.refusal));
  }
  // JSON, templates and tokenizing of a long prompt take seconds: not on the threads that answer /health.
  auto job = [this, exchange = std::move(exchange), request = std::move(request), guard = activity()] {
    if (exchange->disconnected()) return;
    const double limit_s = config.limits.request_timeout_s;
    if (limit_s > 0 && static_cast<double>(now_ns() - request.received_ns) > limit_s * 1e9) {
      return send(exchange, to_response({504, "The request took longer than --request-timeout.", "", "timeout"}));
    }
    try {
      answer_post(exchange, request, guard);
    } catch (const std::exception& error) {
      send(exchange, to_response({500, std::string("The server could not serve this request: ") + error.what(), "", "internal"}));
    }
  };
  if (test_fault(Fault::kInlineTokenize)) return job();
  workers.submit(std::move(job));
}

void HttpServer::Impl::answer_post(const Exchange& exchange, const HttpRequest& request, std::shared_ptr<void> guard) {
  const auto served = current_model();
  if (request.path == "/flush_cache") {
    const auto flushed = flush_cache();
    if (!flushed) return send(exchange, to_response(from_status(flushed.error())));
    return send(exchange, json_response({{"status", "ok"}, {"flushed_blocks", flushed->blocks},
                                         {"running", flushed->running}}));
  }
  if (request.path == "/tokenize" || request.path == "/detokenize") {
    auto result = request.path == "/tokenize" ? tokenize(*served, request) : detokenize(*served, request);
    return send(exchange, result ? json_response(*result) : to_response(result.error()));
  }
  generate(exchange, *served, request, std::move(guard));
}

ApiExpected<GenerationPlan> HttpServer::Impl::plan(const ServedModel& served, const HttpRequest& request) {
  const RequestBounds bounds = bounds_of(served, config.limits.max_queued_requests);
  if (request.path == "/v1/completions") {
    auto parsed = parse_completion_request(request.body, bounds, limits_of(request));
    return parsed ? plan_completion(served, *parsed, seeds) : api_fail(parsed.error());
  }
  auto parsed = parse_chat_request(request.body, bounds, limits_of(request));
  return parsed ? plan_chat(served, *parsed, seeds) : api_fail(parsed.error());
}

void HttpServer::Impl::generate(const Exchange& exchange, const ServedModel& served, const HttpRequest& request,
                                std::shared_ptr<void> guard) {
  auto planned = plan(served, request);
  if (!planned) return send(exchange, to_response(planned.error()));
  planned->received_ns = request.received_ns;
  auto generation = std::make_shared<Generation>(std::move(*planned), GenerationContext{queue, metrics, workers}, exchange);
  Generation* key = generation.get();
  generation->set_on_done([this, key, guard = std::move(guard)] {
    std::shared_ptr<Generation> last;  // destroyed after the lock is released
    std::lock_guard lock(mutex);
    if (auto it = generations.find(key); it != generations.end()) {
      last = std::move(it->second);
      generations.erase(it);
    }
  });
  {
    std::lock_guard lock(mutex);
    generations.emplace(key, generation);
  }
  note_work();
  if (Status queued = generation->submit(); !queued.ok()) generation->abort(from_status(queued));
}

ApiExpected<Json> HttpServer::Impl::tokenize(const ServedModel& served, const HttpRequest& request) {
  auto parsed = parse_tokenize_request(request.body, limits_of(request));
  if (!parsed) return api_fail(parsed.error());
  if (Status status = check_text_bytes(served, request.body.size()); !status.ok()) {
    return api_fail({413, status.message(), "prompt", "context_length_exceeded"});
  }
  const auto* chat = std::get_if<ChatRequest>(&parsed->source);
  if (Status found = check_model_name(served, chat != nullptr ? chat->params.model : parsed->model); !found.ok()) {
    return api_fail({404, found.message(), "model", "model_not_found"});
  }
  ApiExpected<std::vector<TokenId>> ids;
  if (chat != nullptr) {
    auto prompt = render_chat(served, *chat);
    if (!prompt) return api_fail(prompt.error());
    ids = std::move(prompt->ids);
  } else {
    ids = text_prompt_ids(served, std::get<std::string>(parsed->source), parsed->add_special_tokens);
    if (!ids) return api_fail(ids.error());
  }
  return Json{{"count", ids->size()}, {"max_model_len", served.context_length}, {"tokens", std::move(*ids)}};
}

ApiExpected<Json> HttpServer::Impl::detokenize(const ServedModel& served, const HttpRequest& request) {
  auto parsed = parse_detokenize_request(request.body, served.text->tokenizer->vocab_size(), limits_of(request));
  if (!parsed) return api_fail(parsed.error());
  if (Status found = check_model_name(served, parsed->model); !found.ok()) {
    return api_fail({404, found.message(), "model", "model_not_found"});
  }
  return Json{{"prompt", served.text->tokenizer->decode(parsed->tokens, /*skip_special=*/false)}};
}

void HttpServer::Impl::watch_timeouts() {
  const auto limit_ns = static_cast<int64_t>(config.limits.request_timeout_s * 1e9);
  std::unique_lock lock(mutex);
  while (!stopping) {
    changed.wait_for(lock, kTick);
    const int64_t now = now_ns();
    for (auto& [key, generation] : generations) {
      if (now - generation->received_ns() > limit_ns) {
        generation->abort({504, "The request took longer than --request-timeout.", "", "timeout"});
      }
    }
  }
}

void HttpServer::Impl::abort_all(const ApiError& error) {
  std::lock_guard lock(mutex);
  for (auto& [key, generation] : generations) generation->abort(error);
}

HttpServer::HttpServer(const ServeConfig& config, RequestQueue& queue, EngineStatus& status)
    : impl_(std::make_unique<Impl>(config, queue, status)) {
  bound_free_heap();
}

HttpServer::~HttpServer() { stop(); }

Expected<uint16_t> HttpServer::start() {
  auto port = impl_->listener.start();
  if (port && impl_->config.limits.request_timeout_s > 0) {
    impl_->timeouts = std::thread([this] { impl_->watch_timeouts(); });
  }
  return port;
}

void HttpServer::set_flush_cache(std::function<Expected<FlushedCache>()> flush_cache) {
  std::lock_guard lock(impl_->mutex);
  CHECK(!impl_->model);  // no request reads it yet
  impl_->flush_cache = std::move(flush_cache);
}

void HttpServer::set_model(ServedModel model) {
  model.max_token_bytes = measure_tokens(*model.text->tokenizer);
  std::lock_guard lock(impl_->mutex);
  impl_->model = std::make_shared<const ServedModel>(std::move(model));
}

bool HttpServer::drain(std::chrono::milliseconds limit) {
  impl_->draining = true;
  impl_->log(LogLevel::kInfo, "draining: " + std::to_string(num_active()) + " requests may still end");
  impl_->listener.set_draining();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto wait_until = [](auto condition, std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  };
  const bool complete = wait_until([this] { return num_active() == 0; }, limit);
  if (!complete) {
    impl_->log(LogLevel::kWarning, "ending " + std::to_string(num_active()) + " requests at --shutdown-timeout");
    impl_->abort_all(shutting_down());
    wait_until([this] { return num_active() == 0; }, kFlushTime);
  }
  // A slow reader may still take the end of its answer within what is left of the limit.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  wait_until([this] { return impl_->listener.num_connections() == 0; }, std::max(kFlushTime, left));
  return complete;
}

void HttpServer::stop() {
  impl_->draining = true;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  if (impl_->timeouts.joinable()) impl_->timeouts.join();
  impl_->workers.stop();
  impl_->listener.stop();
  std::unordered_map<Generation*, std::shared_ptr<Generation>> left;
  {
    std::lock_guard lock(impl_->mutex);
    left.swap(impl_->generations);
  }
  for (auto& [key, generation] : left) generation->abandon();
}

int HttpServer::num_active() const { return impl_->active.load(); }

}  // namespace tailrace
