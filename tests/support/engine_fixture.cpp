#include "support/engine_fixture.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace tailrace {

EngineSetup test_setup(const std::string& model_path, const std::string& backend) {
  EngineSetup setup;
  setup.model_path = model_path;
  setup.backend = backend;
  setup.threads = 2;
  setup.limits.max_rows = 16;
  setup.limits.context_length = 1024;
  setup.limits.chunk_size = 64;
  setup.limits.block_size = 16;
  setup.limits.max_total_tokens = 16384;
  setup.measure_cost = false;
  // Extend tokens cost next to nothing, so that the chunk size alone bounds what shares a step with decode rows.
  setup.cost = {.base_us = 200, .decode_row_us = 50, .decode_kv_us = 0.01, .extend_token_us = 0.5,
                .extend_pair_us = 0.00001};
  return setup;
}

Status use_cuda(EngineSetup* setup) {
  const auto device = decide_device("cuda", 0);
  if (!device) return device.error();
  setup->device_kind = "cuda";
  setup->gpu_name = device->reason;
  setup->limits.block_size = 64;
  return {};
}

Request greedy_request(std::vector<TokenId> prompt, int32_t max_tokens, int32_t num_top_logprobs) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.sampling.num_top_logprobs = num_top_logprobs;
  return request;
}

std::vector<TokenId> random_prompt(uint64_t seed, int32_t length, int32_t vocab) {
  std::mt19937_64 random(seed * 7919 + 13);
  std::vector<TokenId> ids(length);
  for (TokenId& id : ids) id = static_cast<TokenId>(2 + random() % (vocab - 2));
  return ids;
}

TestEngine::TestEngine(const EngineSetup& setup, size_t queue_capacity) {
  auto client = EngineClient::create(setup, queue_capacity);
  EXPECT_TRUE(client.has_value()) << client.error().message();
  if (client) client_ = std::move(*client);
}

TestEngine::~TestEngine() = default;

std::shared_ptr<const Request> TestEngine::submit(Request request, std::function<void()> on_first) {
  auto submitted = client_->submit(std::move(request), std::move(on_first));
  EXPECT_TRUE(submitted.has_value()) << submitted.error().message();
  return *submitted;
}

const Answer& TestEngine::poll(const Request& request) { return client_->poll(request); }

const Answer& TestEngine::wait(const Request& request, int num_tokens, std::chrono::seconds timeout) {
  if (!client_->wait(request, num_tokens, timeout)) {
    ADD_FAILURE() << "request " << request.id << " has " << poll(request).ids.size() << " tokens and no end after "
                  << timeout.count() << " s";
  }
  return poll(request);
}

void TestEngine::cancel(const Request& request) { client_->cancel(request); }

std::vector<Answer> TestEngine::run(const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<const Request>> submitted;
  for (const Request& request : requests) submitted.push_back(submit(request));
  std::vector<Answer> answers;
  for (const auto& request : submitted) answers.push_back(wait(*request));
  return answers;
}

void TestEngine::wait_idle() { EXPECT_TRUE(client_->wait_idle()) << "the engine does not become idle"; }
void TestEngine::flush_cache() { EXPECT_TRUE(client_->flush_cache()) << "the cache does not become empty"; }
void TestEngine::stop(bool abort) { client_->stop(abort); }

}  // namespace tailrace
