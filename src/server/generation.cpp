#include "server/generation.h"

#include <algorithm>

#include "base/clock.h"
#include "server/http_answer.h"
#include "server/sse.h"

namespace tailrace {
namespace {

double seconds_between(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns >= from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : -1.0;
}

ApiError engine_error(const Status& status) {
  ApiError error = from_status(status);
  if (status.code() == StatusCode::kTooLarge) {  // the request's lengths, not its body
    error.http_status = 400;
    error.code = "context_length_exceeded";
  }
  return error;
}

// Appends pieces of calls to what came of those calls before.
void join_calls(std::vector<ToolCallDelta>& whole, std::vector<ToolCallDelta> pieces) {
  for (auto& piece : pieces) {
    if (!whole.empty() && whole.back().index == piece.index) {
      whole.back().arguments += piece.arguments;
    } else {
      whole.push_back(std::move(piece));
    }
  }
}

}  // namespace

Generation::Generation(GenerationPlan plan, GenerationContext context, std::shared_ptr<HttpExchange> exchange)
    : plan_(std::move(plan)), context_(context), exchange_(std::move(exchange)) {
  choices_.reserve(plan_.requests.size());
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    ChoiceRules rules{plan_.stops, plan_.position};
    const OutputPlan& output = plan_.output;
    rules.parser = make_output_parser(output.format, output.think_start, output.tools, *plan_.tokenizer);
    rules.parallel_calls = output.parallel_calls;
    rules.call_seed = output.call_seed + (uint64_t{i} << 32);
    choices_.emplace_back(ChoiceStream(plan_.requests[i], plan_.tokenizer, std::move(rules)));
    choices_[i].whole.index = static_cast<int32_t>(i);
    choices_[i].whole.has_logprobs = plan_.requests[i]->sampling.num_top_logprobs >= 0;
  }
}

Status Generation::submit() {
  const int64_t now = now_ns();
  if (plan_.entry) {
    plan_.entry->set_plan(plan_.head.id, plan_.stream, plan_.requests, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->cut();
    });
  }
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    const auto& stream = plan_.requests[i]->stream;
    stream->times.queued_ns.store(now);
    stream->set_ready_callback([weak = weak_from_this(), i] {
      auto self = weak.lock();
      if (!self) return;
      const auto exchange = self->exchange_;  // outlives the call even if the task ends first
      exchange->post([self = std::move(self), i] { self->pump(i); });
    });
  }
  if (Status status = context_.queue.push(plan_.requests); !status.ok()) return status;
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->client_left();
  });
  return Status();
}

void Generation::cut() {
  for (const auto& request : plan_.requests) request->stream->cancel();
  context_.queue.wake();
}

void Generation::abort(ApiError error) {
  exchange_->post([self = shared_from_this(), error = std::move(error)] {
    if (!self->done_) self->end_with_error(error);
  });
}

void Generation::pump(size_t index) {
  if (done_) return;
  Choice& choice = choices_[index];
  if (choice.finish_sent) return;
  auto events = choice.stream.request()->stream->take();
  observe_tokens(choice, std::count_if(events.begin(), events.end(), [](const TokenEvent& event) {
                   return event.kind == TokenEvent::Kind::kToken;
                 }));
  for (auto& event : events) choice.stream.accept(std::move(event));
  if (!choice.stream.error().ok()) return end_with_error(engine_error(choice.stream.error()));
  emit(index);
  if (!choice.stream.ended()) return;
  choice.finish_sent = true;
  end_choice(choice, choice.stream.finish_reason());
  if (++num_ended_ == choices_.size()) complete();
}

void Generation::observe_tokens(Choice& choice, int64_t count) {
  if (count == 0) return;
  if (plan_.entry) plan_.entry->add_tokens(count);
  const int64_t now = now_ns();
  if (choice.last_token_ns == 0) {
    context_.metrics.time_to_first_token(seconds_between(plan_.received_ns, now));
  } else {
    context_.metrics.inter_token(seconds_between(choice.last_token_ns, now), static_cast<int>(count));
  }
  choice.last_token_ns = now;
}

Json Generation::chunk(Json choices) const {
  Json out = answer_json(plan_.head, /*stream=*/true, std::move(choices));
  if (plan_.include_usage) out["usage"] = nullptr;
  return out;
}

// Sends (streaming) or keeps (otherwise) what this choice has produced since the last time.
void Generation::emit(size_t index) {
  Choice& choice = choices_[index];
  ChoiceDelta delta = choice.stream.take_delta();
  if (!plan_.stream) {
    choice.whole.text += delta.text;
    choice.whole.reasoning += delta.reasoning;
    join_calls(choice.whole.calls, std::move(delta.calls));
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.whole.logprobs));
    choice.whole.finish_reason = choice.stream.finish_reason();
    return;
  }
  if (!streaming_) {
    streaming_ = true;
    context_.metrics.http_answer(200);
    exchange_->begin_stream(sse_head());
  }
  std::string out;
  if (!choice.announced && plan_.head.dialect == ApiDialect::kChat) {
    out += sse_event(chunk(Json::array({role_json(static_cast<int32_t>(index))})));
  }
  choice.announced = true;
  const bool last_of_all = choice.stream.ended() && num_ended_ + 1 == choices_.size();
  if (!delta.empty() || !delta.logprobs.empty() || choice.stream.ended()) {
    ChoicePart part{static_cast<int32_t>(index), std::move(delta.text), std::move(delta.reasoning),
                    std::move(delta.calls), choice.stream.finish_reason(), choice.whole.has_logprobs,
                    std::move(delta.logprobs), choice.text_offset};
    for (const auto& event : part.logprobs) {
      choice.text_offset += count_code_points(plan_.tokenizer->token_bytes(event.id));
    }
    Json json = chunk(Json::array({choice_json(plan_.head.dialect, part, *plan_.tokenizer, /*stream=*/true)}));
    if (last_of_all && !plan_.include_usage) json["timings"] = timings_json(timings(), usage());
    out += sse_event(json);
  }
  exchange_->write(out);
}

void Generation::end_choice(const Choice& choice, const char* reason) {
  const auto& request = *choice.stream.request();
  const auto& times = request.stream->times;
  const int64_t now = now_ns();
  if (plan_.entry) plan_.entry->choice_ended(static_cast<size_t>(choice.whole.index), reason);
  const int64_t first = times.first_token_ns.load();
  context_.metrics.finished({reason, static_cast<int64_t>(request.prompt_ids.size()), choice.stream.completion_tokens(),
                             seconds_between(times.queued_ns.load(), times.admitted_ns.load()),
                             seconds_between(times.admitted_ns.load(), first), seconds_between(first, now),
                             seconds_between(plan_.received_ns, now)});
}

Usage Generation::usage() const {
  Usage out;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const auto& request = *choices_[i].stream.request();
    out.completion_tokens += choices_[i].stream.completion_tokens();
    if (i % static_cast<size_t>(plan_.choices_per_prompt) != 0) continue;
    // Choices of one prompt find what the first of them computed; what was cached before is the smallest share.
    int32_t cached = INT32_MAX;
    for (int32_t j = 0; j < plan_.choices_per_prompt; ++j) {
      cached = std::min(cached, choices_[i + j].stream.request()->stream->cached_len.load());
    }
    out.prompt_tokens += static_cast<int64_t>(request.prompt_ids.size());
    out.cached_tokens += cached;
  }
  return out;
}

AnswerTimings Generation::timings() const {
  const auto earliest = [](int64_t& slot, int64_t value) {
    if (value > 0 && (slot == 0 || value < slot)) slot = value;
  };
  AnswerTimings out;
  out.received_ns = plan_.received_ns;
  for (const Choice& choice : choices_) {
    const auto& stream = *choice.stream.request()->stream;
    earliest(out.queued_ns, stream.times.queued_ns.load());
    earliest(out.admitted_ns, stream.times.admitted_ns.load());
    earliest(out.first_token_ns, stream.times.first_token_ns.load());
    const int64_t finished = stream.times.finished_ns.load();
    out.finished_ns = std::max(out.finished_ns, finished > 0 ? finished : choice.last_token_ns);
    out.gpu_idle_us += stream.gpu_idle_ns.load() / 1000;
    out.preemptions += stream.num_preemptions.load();
  }
  return out;
}

void Generation::complete() {
  if (plan_.stream) {
    std::string out;
    if (plan_.include_usage) {
      Json last = answer_json(plan_.head, /*stream=*/true, Json::array());
      last["usage"] = usage_json(usage());
      last["timings"] = timings_json(timings(), usage());
      out += sse_event(last);
    }
    exchange_->write(out + kSseDone);
    exchange_->end_stream();
    return done();
  }
  const bool large = std::any_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.whole.logprobs.size() > 256 || choice.whole.text.size() > (size_t{1} << 16);
  });
  if (!large) {
    respond_whole();
    return done();
  }
  done_ = true;  // nothing else touches the choices while a worker reads them
  context_.workers.submit([self = shared_from_this()] {
    self->respond_whole();
    self->exchange_->post([self] { self->done(); });
  });
}

void Generation::respond_whole() {
  Json choices = Json::array();
  for (const Choice& choice : choices_) {
    choices.push_back(choice_json(plan_.head.dialect, choice.whole, *plan_.tokenizer, /*stream=*/false));
  }
  Json body = answer_json(plan_.head, /*stream=*/false, std::move(choices));
  body["usage"] = usage_json(usage());
  body["timings"] = timings_json(timings(), usage());
  HttpResponse response;
  response.body = dump_json(body);
  context_.metrics.http_answer(200);
  exchange_->respond(std::move(response));
}

void Generation::end_with_error(const ApiError& error) {
  for (const Choice& choice : choices_) {
    if (!choice.finish_sent) end_choice(choice, "error");
  }
  cancel_running();
  if (streaming_) {
    exchange_->write(sse_event(to_json(error)) + kSseDone);
    exchange_->end_stream();
  } else {
    context_.metrics.http_answer(error.http_status);
    exchange_->respond(to_response(error));
  }
  done();
}

void Generation::client_left() {
  if (done_) return;
  for (const Choice& choice : choices_) {
    if (!choice.finish_sent) end_choice(choice, "abort");
  }
  cancel_running();
  done();
}

void Generation::cancel_running() {
  for (const Choice& choice : choices_) {
    if (!choice.stream.ended()) choice.stream.request()->stream->cancel();
  }
  context_.queue.wake();
}

void Generation::done() {
  done_ = true;
  for (const auto& request : plan_.requests) request->stream->set_ready_callback(nullptr);
  if (auto on_done = std::exchange(on_done_, nullptr)) on_done();
}

}  // namespace tailrace
