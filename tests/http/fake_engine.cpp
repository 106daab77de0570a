#include "http/fake_engine.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/clock.h"

namespace tailrace::test {

void FakeEngine::start() {
  status_.num_kv_groups = 1;
  status_.kv[0].total = 100;
  status_.kv[0].free = 100;
  status_.beat();
  status_.state = EngineState::kReady;
  thread_ = std::thread([this] { run(); });
}

void FakeEngine::stop() {
  stopping_ = true;
  queue_.wake();
  if (thread_.joinable()) thread_.join();
}

void FakeEngine::run() {
  while (!stopping_) {
    if (hung) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    admit();
    rows_.erase(std::remove_if(rows_.begin(), rows_.end(), [this](Row& row) { return !step(row); }), rows_.end());
    publish();
    if (step_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_us));
  }
  queue_.close();
  for (auto& request : queue_.take(std::chrono::microseconds(0))) waiting_.push_back(request);
  const Status stopped(StatusCode::kUnavailable, "the engine has stopped");
  for (auto& request : waiting_) finish(*request, FinishReason::kError, stopped);
  for (auto& row : rows_) finish(*row.request, FinishReason::kError, stopped);
  status_.state = EngineState::kDead;
}

void FakeEngine::admit() {
  const bool idle = rows_.empty() && waiting_.empty();
  for (auto& request : queue_.take(std::chrono::microseconds(idle ? 1000 : 0))) {
    open_.fetch_add(1);
    if (request->prompt_ids.size() > pool_tokens) {
      finish(*request, FinishReason::kError, Status(StatusCode::kTooLarge, "the prompt is larger than the KV pool"));
      continue;
    }
    waiting_.push_back(std::move(request));
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if ((*it)->stream->cancelled() || fail_all) {
      finish(**it, fail_all ? FinishReason::kError : FinishReason::kCancelled,
             fail_all ? Status(StatusCode::kInternal, "the device failed") : Status());
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  while (admitting && !waiting_.empty() && static_cast<int>(rows_.size()) < slots_) {
    auto request = std::move(waiting_.front());
    waiting_.pop_front();
    num_started.fetch_add(1);
    request->stream->times.admitted_ns = now_ns();
    rows_.push_back({request, request->prompt_ids.back()});
    status_.prompt_tokens.fetch_add(request->prompt_ids.size());
  }
  queue_.set_waiting_in_engine(waiting_.size());
}

// The script's token where anything is allowed. Else ends an answer where that is allowed, or mostly closes what is open, so that it comes to an end.
Expected<TokenId> FakeEngine::constrained_token(Row& row) {
  const bool first = row.constraint == nullptr;
  if (first) row.constraint = row.request->constraint->start().value();
  std::vector<uint32_t> mask(mask_words(text_.vocab_size));
  const Status status = row.constraint->next(std::span(&row.last, first ? 0 : 1), mask);
  if (!status.ok()) return fail(status);
  const auto allowed = [&](TokenId id) { return (mask[id / 32] >> (id % 32) & 1) != 0; };
  std::vector<TokenId> choices;
  for (TokenId id = 0; id < text_.vocab_size; ++id) {
    if (allowed(id)) choices.push_back(id);
  }
  if (static_cast<int32_t>(choices.size()) == text_.vocab_size) return text_.next(row.last);
  if (allowed(text_.eos)) return text_.eos;
  const uint32_t random = static_cast<uint32_t>(row.generated + 1) * 2654435761u >> 8;
  for (const char close : {'"', '}', ']'}) {
    if (random % 2 == 0 && allowed(close)) return close;
  }
  return choices[random / 2 % choices.size()];
}

bool FakeEngine::step(Row& row) {
  const Request& request = *row.request;
  if (request.stream->cancelled()) return finish(request, FinishReason::kCancelled), false;
  if (fail_all) return finish(request, FinishReason::kError, Status(StatusCode::kInternal, "the device failed")), false;
  const Expected<TokenId> chosen = request.constraint ? constrained_token(row) : text_.next(row.last);
  if (!chosen) return finish(request, FinishReason::kError, chosen.error()), false;
  const TokenId token = row.last = *chosen;
  ++row.generated;
  if (row.generated == 1) request.stream->times.first_token_ns = now_ns();
  TokenEvent event;
  event.id = token;
  if (request.sampling.num_top_logprobs >= 0) {
    event.logprob = -0.25f;
    for (int i = 0; i < request.sampling.num_top_logprobs; ++i) {
      event.top_logprobs.push_back({i == 0 ? token : 'a' + i, -0.25f - static_cast<float>(i)});
    }
  }
  num_tokens.fetch_add(1);
  status_.generated_tokens.fetch_add(1);
  request.stream->push(std::move(event));
  const auto& stops = request.stop_token_ids;
  const bool stop = std::find(stops.begin(), stops.end(), token) != stops.end() && row.generated >= request.min_tokens;
  if (stop) return finish(request, FinishReason::kStop), false;
  if (row.generated == request.max_tokens) return finish(request, FinishReason::kLength), false;
  return true;
}

void FakeEngine::finish(const Request& request, FinishReason reason, Status error) {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinish;
  event.finish = reason;
  event.error = std::move(error);
  request.stream->times.finished_ns = now_ns();
  (reason == FinishReason::kCancelled ? num_cancelled : num_finished).fetch_add(1);
  open_.fetch_sub(1);
  request.stream->push(std::move(event));
}

void FakeEngine::publish() {
  status_.running = static_cast<int32_t>(rows_.size());
  status_.waiting = static_cast<int32_t>(waiting_.size());
  status_.kv[0].owned = static_cast<int64_t>(rows_.size());
  status_.kv[0].free = 100 - static_cast<int64_t>(rows_.size());
  status_.idle = rows_.empty() && waiting_.empty();
  status_.decode_steps.fetch_add(rows_.empty() ? 0 : 1);
  status_.beat();
}

}  // namespace tailrace::test
