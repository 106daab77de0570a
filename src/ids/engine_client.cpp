#include "ids/engine_client.h"

#include <thread>
#include <utility>

#include "base/check.h"

namespace tailrace {
namespace {

constexpr int kIdleLooks = 20000;  // a millisecond apart

template <typename Done>
bool look_until(const Done& done) {
  for (int i = 0; i < kIdleLooks; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

Expected<std::unique_ptr<EngineClient>> EngineClient::create(const EngineSetup& setup, size_t queue_capacity) {
  std::unique_ptr<EngineClient> client(new EngineClient(queue_capacity));
  auto host = EngineHost::create(setup, client->queue_, client->status_, nullptr);
  if (!host) return fail(host.error());
  client->host_ = std::move(*host);
  client->host_->start();
  return client;
}

EngineClient::~EngineClient() {
  if (host_) stop(true);
}

Expected<std::shared_ptr<const Request>> EngineClient::submit(Request request, std::function<void()> on_first) {
  request.id = next_request_id();
  request.stream = std::make_shared<TokenStream>();
  auto shared = std::make_shared<const Request>(std::move(request));
  // Shared, since the stream calls copies of its callback: each would have its own first time.
  const auto once = std::make_shared<std::function<void()>>(std::move(on_first));
  shared->stream->set_ready_callback([arrivals = arrivals_, once] {
    if (auto first = std::exchange(*once, nullptr)) first();
    {
      std::lock_guard lock(arrivals->mutex);
      arrivals->count++;
    }
    arrivals->changed.notify_all();
  });
  answers_.emplace(shared->id, Answer{});  // before on_first can run
  if (Status status = queue_.push({shared}); !status.ok()) {
    answers_.erase(shared->id);
    return fail(status);
  }
  return shared;
}

const Answer& EngineClient::poll(const Request& request) {
  Answer& answer = answers_.at(request.id);
  for (TokenEvent& event : request.stream->take()) {
    CHECK_MSG(!answer.finished, "an event after the finish event");
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

bool EngineClient::wait(const Request& request, int num_tokens, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    uint64_t seen;
    {
      std::lock_guard lock(arrivals_->mutex);
      seen = arrivals_->count;
    }
    const Answer& answer = poll(request);
    if (answer.finished || (num_tokens >= 0 && static_cast<int>(answer.ids.size()) >= num_tokens)) return true;
    std::unique_lock lock(arrivals_->mutex);
    if (!arrivals_->changed.wait_until(lock, deadline, [&] { return arrivals_->count != seen; })) return false;
  }
}

void EngineClient::wait_any(std::chrono::microseconds timeout) {
  std::unique_lock lock(arrivals_->mutex);
  arrivals_->changed.wait_for(lock, timeout, [&] { return arrivals_->count != arrivals_seen_; });
  arrivals_seen_ = arrivals_->count;
}

void EngineClient::cancel(const Request& request) {
  request.stream->cancel();
  queue_.wake();
}

bool EngineClient::wait_idle() {
  return look_until(
      [&] { return status_.idle && queue_.depth() == 0 && status_.running == 0 && status_.inflight_steps == 0; });
}

bool EngineClient::flush_cache() {
  if (!wait_idle()) return false;
  return host_->flush_cache(std::chrono::seconds(20)).has_value();
}

void EngineClient::stop(bool abort) {
  host_->stop(abort);
  host_->join();
}

}  // namespace tailrace
