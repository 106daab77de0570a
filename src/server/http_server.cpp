#include "server/http_server.h"

#include <algorithm>

#include "base/check.h"
#include "base/heap.h"
#include "server/http_server_impl.h"
#include "server/random_id.h"
#include "server/routes.h"

namespace tailrace {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kFlushTime =
    std::chrono::milliseconds(500);  // for the last bytes of answers when draining ends

int tokenizer_threads(const HttpOptions& options) {
  if (options.tokenizer_threads > 0) return options.tokenizer_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

}  // namespace

HttpServer::Impl::Impl(const ServeConfig& serve_config, RequestQueue& request_queue,
                       EngineStatus& engine_status)
    : config(serve_config),
      queue(request_queue),
      status(engine_status),
      metrics(engine_status, serve_config.model.served_name),
      seeds(serve_config.engine.has_random_seed ? serve_config.engine.random_seed : random_bits()),
      responses(serve_config.limits.max_stored_responses, serve_config.limits.max_stored_response_bytes),
      cors(serve_config.http.cors_origins),
      pages(serve_config.http.host, serve_config.http.allowed_hosts, cors),
      events(serve_config.log_format, serve_config.log_level),
      workers(tokenizer_threads(serve_config.http),
              [this](const char* what) { events.write(LogLevel::kError, "request_dropped", {{"error", what}}); }),
      listener(serve_config.http,
               [this](Exchange exchange, HttpRequest request) { route(std::move(exchange), std::move(request)); },
               {.prepare = [this](HttpRequest& head) { return prepare(head); },
                .refuse = [this](const HttpRequest& head) { return refuse(head); },
                .always_answered = [](const HttpRequest& head) { return always_answered(head.path); }},
               [this] { queue_heap_return(); },
               [this](const char* what) { events.write(LogLevel::kError, "connection_failed", {{"error", what}}); }) {}

void HttpServer::Impl::queue_heap_return() {
  if (heap_return_queued.exchange(true)) return;
  workers.submit([this] {
    heap_return_queued = false;
    return_free_heap();
  });
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
  auto keys = ApiKeys::load(impl_->config.http);
  if (!keys) return fail(keys.error());
  impl_->keys = std::move(*keys);
  auto port = impl_->listener.start();
  if (const int allowed = impl_->listener.max_connections(); port && allowed < impl_->config.http.max_connections) {
    impl_->events.write(LogLevel::kWarning, "max_connections_lowered",
                        {{"asked", impl_->config.http.max_connections},
                         {"allowed", allowed},
                         {"reason", "no more files may be open at a time (ulimit -n)"}});
  }
  if (port && impl_->config.limits.request_timeout_s > 0) {
    impl_->timeouts = std::thread([this] { impl_->watch_timeouts(); });
  }
  return port;
}

void HttpServer::reload_keys() {
  const Status status = impl_->keys->reload();
  std::vector<StoredResponse::Owner> owners;
  for (const auto& key : impl_->keys->all()) owners.push_back(key->use);
  impl_->responses.keep_only(owners);
  const int count = static_cast<int>(owners.size());
  impl_->events.write(
      status.ok() ? LogLevel::kInfo : LogLevel::kError, "keys_reloaded",
      {{"keys", count}, {"error", status.ok() ? Json(nullptr) : Json(status.message())}});
}

void HttpServer::set_info(Json info) {
  std::lock_guard lock(impl_->mutex);
  impl_->info = std::make_shared<const Json>(std::move(info));
}

void HttpServer::set_flush_cache(std::function<Expected<FlushedCache>()> flush_cache) {
  std::lock_guard lock(impl_->mutex);
  CHECK(!impl_->model);  // no request reads it yet
  impl_->flush_cache = std::move(flush_cache);
}

void HttpServer::set_page(std::span<const PageFile> files) { impl_->page = files; }

void HttpServer::set_step_log(const StepLog* log) { impl_->feed.set_log(log); }

void HttpServer::set_model(ServedModel model) {
  model.max_token_bytes = measure_tokens(*model.text->tokenizer);
  std::lock_guard lock(impl_->mutex);
  impl_->model = std::make_shared<const ServedModel>(std::move(model));
}

bool HttpServer::drain(std::chrono::milliseconds limit) {
  impl_->draining = true;
  impl_->events.write(LogLevel::kInfo, "draining", {{"running", num_active()}});
  impl_->listener.set_draining();
  impl_->feed.stop();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto wait_until = [](auto condition, std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!condition() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  };
  const bool complete = wait_until([this] { return num_active() == 0; }, limit);
  if (!complete) {
    impl_->events.write(LogLevel::kWarning, "shutdown_timeout", {{"ended", num_active()}});
    impl_->abort_all(shutting_down());
    wait_until([this] { return num_active() == 0; }, kFlushTime);
  }
  // A slow reader may still take the end of its answer within what is left of the limit; who has asked nothing is not waited for.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  wait_until([this] { return impl_->listener.num_busy() == 0; }, std::max(kFlushTime, left));
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
  impl_->feed.stop();
  impl_->listener.stop();
  std::unordered_map<Generation*, std::shared_ptr<Generation>> left;
  {
    std::lock_guard lock(impl_->mutex);
    left.swap(impl_->generations);
  }
  for (auto& [key, generation] : left) generation->abandon();
  impl_->events.close();
}

int HttpServer::num_active() const { return impl_->active.load(); }

}  // namespace tailrace
