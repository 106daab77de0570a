// HttpServer: the API's routes, readiness, authorization, draining; connects clients to the engine's request queue.
//
// routes.cpp lists the routes, docs/HTTP_API.md and docs/openapi.json say what each does.
//
// The port is open while the model loads (/health says "loading", 503). After drain() has begun, /health is 503 and new
// requests get 503 with Connection: close; the running ones go on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/engine_status.h"
#include "base/request_queue.h"
#include "base/status.h"
#include "base/step_log.h"
#include "server/config.h"
#include "server/generation_plan.h"
#include "server/json.h"
#include "server/page.h"

namespace tailrace {

class HttpServer {
 public:
  // `queue` and `status` outlive the server. Bounds what the process keeps of freed memory (base/heap.h).
  HttpServer(const ServeConfig& config, RequestQueue& queue, EngineStatus& status);
  ~HttpServer();  // stop()

  // What / and /assets/* are, before start(); without, a text says that there is no page.
  void set_page(std::span<const PageFile> files);

  // Listens and starts the threads; the port that was bound. The error names address and reason.
  Expected<uint16_t> start();

  // The model has been read. Requests are admitted from now on whenever the engine's state is kReady.
  void set_model(ServedModel model);

  // What POST /flush_cache calls, on a worker thread: may wait for a bounded time. Before set_model; must outlive stop().
  void set_flush_cache(std::function<Expected<FlushedCache>()> flush_cache);

  // Where the engine writes its steps. Before set_model; outlives the server.
  void set_step_log(const StepLog* log);

  // What GET /server_info says besides version, state, uptime and counters: an object without secrets. Any time.
  void set_info(Json info);

  // Reads --api-key-file again; what is wrong with it is logged, and the keys stay as they were. After start().
  void reload_keys();

  // Stops admitting at once; returns true when every running request has ended by itself within `limit`. Otherwise those
  // left get an error (an event once they stream, 503 before) and are cancelled.
  bool drain(std::chrono::milliseconds limit);

  // Closes all connections and joins the threads; idempotent. Requests still running are cancelled.
  void stop();

  int num_active() const;  // requests being prepared or answered

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
