// TestEngine: a running engine on a checkpoint, without server or text: requests in, ids and logprobs out.
#pragma once

#include <chrono>
#include <condition_variable>
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

// Small limits and a fixed cost model, so that plans do not depend on the machine.
EngineSetup test_setup(const std::string& model_path, const std::string& backend = "cpu");

// A greedy request that ignores every stop token.
Request greedy_request(std::vector<TokenId> prompt, int32_t max_tokens, int32_t num_top_logprobs = 2);
std::vector<TokenId> random_prompt(uint64_t seed, int32_t length, int32_t vocab = 256);

class TestEngine {
 public:
  // Fails the test (and leaves ok() false) when the engine cannot be made.
  explicit TestEngine(const EngineSetup& setup, size_t queue_capacity = 1 << 14);
  ~TestEngine();
  TestEngine(const TestEngine&) = delete;

  bool ok() const { return host_ != nullptr; }
  // Gives the request an id and a stream of its own, and submits it.
  std::shared_ptr<const Request> submit(Request request);
  // What has arrived so far.
  const Answer& poll(const Request& request);
  // Waits until `request` has `num_tokens` tokens or its end; a test failure after `timeout`. -1: its end.
  const Answer& wait(const Request& request, int num_tokens = -1,
                     std::chrono::seconds timeout = std::chrono::seconds(60));
  void cancel(const Request& request);
  // Submits all at once and waits for all.
  std::vector<Answer> run(const std::vector<Request>& requests);
  // Waits until the engine has nothing to do.
  void wait_idle();
  void flush_cache();
  void stop(bool abort);

  EngineStatus& status() { return status_; }
  EngineHost& host() { return *host_; }

 private:
  struct Arrivals {  // outlives the engine in callbacks
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t count = 0;
  };

  RequestQueue queue_;
  EngineStatus status_;
  std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  std::unordered_map<uint64_t, Answer> answers_;
  std::unique_ptr<EngineHost> host_;
};

}  // namespace tailrace
