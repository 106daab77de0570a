// TestEngine: a running engine on a checkpoint, without server or text: requests in, ids and logprobs out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ids/engine_client.h"

namespace tailrace {

// Small limits and a fixed cost model, so that plans do not depend on the machine.
EngineSetup test_setup(const std::string& model_path, const std::string& backend = "cpu");

// Puts `setup` on this machine's GPU; why not, where there is none.
Status use_cuda(EngineSetup* setup);

// A greedy request that ignores every stop token.
Request greedy_request(std::vector<TokenId> prompt, int32_t max_tokens, int32_t num_top_logprobs = 2);
std::vector<TokenId> random_prompt(uint64_t seed, int32_t length, int32_t vocab = 256);

class TestEngine {
 public:
  // Fails the test (and leaves ok() false) when the engine cannot be made.
  explicit TestEngine(const EngineSetup& setup, size_t queue_capacity = 1 << 14);
  ~TestEngine();
  TestEngine(const TestEngine&) = delete;

  bool ok() const { return client_ != nullptr; }
  // Gives the request an id and a stream of its own, and submits it. on_first: see EngineClient::submit.
  std::shared_ptr<const Request> submit(Request request, std::function<void()> on_first = nullptr);
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

  EngineStatus& status() { return client_->status(); }
  EngineHost& host() { return client_->host(); }

 private:
  std::unique_ptr<EngineClient> client_;
};

}  // namespace tailrace
