// EngineClient: a running engine without server or text: requests of token ids in, answers of ids and logprobs out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine_host.h"

namespace tailrace {

// What one request was given.
struct Answer {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  bool finished = false;
  FinishReason finish = FinishReason::kError;
  std::string error;
  int32_t cached_len = 0, num_preemptions = 0;
};

class EngineClient {
 public:
  static Expected<std::unique_ptr<EngineClient>> create(const EngineSetup& setup, size_t queue_capacity = 1 << 14);
  ~EngineClient();
  EngineClient(const EngineClient&) = delete;

  // Gives the request an id and a stream of its own, and submits it; kResourceExhausted when the queue is full. on_first: called
  // once on the engine's thread, with the request's first event; may submit others there while no other thread uses the client.
  Expected<std::shared_ptr<const Request>> submit(Request request, std::function<void()> on_first = nullptr);
  // What has arrived so far.
  const Answer& poll(const Request& request);
  // Waits until `request` has `num_tokens` tokens or its end (-1: its end); false after `timeout`.
  bool wait(const Request& request, int num_tokens, std::chrono::seconds timeout);
  // Waits until some answer has grown since the last call, or for `timeout`.
  void wait_any(std::chrono::microseconds timeout);
  // Stops `request` early; it still gets its end.
  void cancel(const Request& request);
  // Waits until the engine has nothing to do; false after 20 s.
  bool wait_idle();
  // Idle, then without cached prefixes; false after 20 s each.
  bool flush_cache();
  void stop(bool abort);

  EngineStatus& status() { return status_; }
  EngineHost& host() { return *host_; }

 private:
  struct Arrivals {  // outlives the engine in callbacks
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t count = 0;
  };

  explicit EngineClient(size_t queue_capacity) : queue_(queue_capacity) {}

  RequestQueue queue_;
  EngineStatus status_;
  std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  uint64_t arrivals_seen_ = 0;
  std::unordered_map<uint64_t, Answer> answers_;
  std::unique_ptr<EngineHost> host_;
};

}  // namespace tailrace
