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

TestEngine::TestEngine(const EngineSetup& setup, size_t queue_capacity) : queue_(queue_capacity) {
  auto host = EngineHost::create(setup, queue_, status_, nullptr);
  EXPECT_TRUE(host.has_value()) << host.error().message();
  if (!host) return;
  host_ = std::move(*host);
  host_->start();
}

TestEngine::~TestEngine() {
  if (host_) stop(true);
}

std::shared_ptr<const Request> TestEngine::submit(Request request) {
  request.id = next_request_id();
  request.stream = std::make_shared<TokenStream>();
  auto shared = std::make_shared<const Request>(std::move(request));
  shared->stream->set_ready_callback([arrivals = arrivals_] {
    {
      std::lock_guard lock(arrivals->mutex);
      arrivals->count++;
    }
    arrivals->changed.notify_all();
  });
  answers_.emplace(shared->id, Answer{});
  const Status status = queue_.push({shared});
  EXPECT_TRUE(status.ok()) << status.message();
  return shared;
}

const Answer& TestEngine::poll(const Request& request) {
  Answer& answer = answers_.at(request.id);
  for (TokenEvent& event : request.stream->take()) {
    EXPECT_FALSE(answer.finished) << "an event after the finish event";
    if (event.kind == TokenEvent::Kind::kToken) {
      answer.ids.push_back(event.id);
      answer.logprobs.push_back(event.logprob);
      answer.top.push_back(std::move(event.top_logprobs));
    } else {
      answer.finished = true;
      answer.finish = event.finish;
      answer.error = event.error.message();
    }
  }
  answer.cached_len = request.stream->cached_len;
  answer.num_preemptions = request.stream->num_preemptions;
  return answer;
}

const Answer& TestEngine::wait(const Request& request, int num_tokens, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    uint64_t seen;
    {
      std::lock_guard lock(arrivals_->mutex);
      seen = arrivals_->count;
    }
    const Answer& answer = poll(request);
    if (answer.finished || (num_tokens >= 0 && static_cast<int>(answer.ids.size()) >= num_tokens)) return answer;
    std::unique_lock lock(arrivals_->mutex);
    if (!arrivals_->changed.wait_until(lock, deadline, [&] { return arrivals_->count != seen; })) {
      ADD_FAILURE() << "request " << request.id << " has " << answer.ids.size() << " tokens and no end after "
                    << timeout.count() << " s";
      return answer;
    }
  }
}

void TestEngine::cancel(const Request& request) {
  request.stream->cancel();
  queue_.wake();
}

std::vector<Answer> TestEngine::run(const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<const Request>> submitted;
  for (const Request& request : requests) submitted.push_back(submit(request));
  std::vector<Answer> answers;
  for (const auto& request : submitted) answers.push_back(wait(*request));
  return answers;
}

void TestEngine::wait_idle() {
  for (int i = 0; i < 20000; ++i) {
    if (status_.idle && queue_.depth() == 0 && status_.running == 0 && status_.inflight_steps == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "the engine does not become idle";
}

void TestEngine::flush_cache() {
  wait_idle();
  host_->flush_cache();
  for (int i = 0; i < 20000 && status_.kv[0].cached != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(status_.kv[0].cached, 0);
}

void TestEngine::stop(bool abort) {
  host_->stop(abort);
  host_->join();
}

}  // namespace tailrace
