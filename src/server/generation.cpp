#include "server/generation.h"

#include <algorithm>

#include "base/clock.h"
#include "server/answer_constraint.h"
#include "server/sse.h"

namespace tailrace {
namespace {

// Larger answers are put together by a worker.
constexpr int32_t kLargeAnswerTokens = 4096;
constexpr size_t kLargeLogprobs = 256;
// Of one choice at a time: what the engine has got ahead meanwhile waits until other connections had their turn, and
// until it is known whether the client takes what was written.
constexpr size_t kTurnEvents = 256;

double seconds_between(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns >= from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : -1.0;
}

ApiError engine_error(const Status& status, const std::string& grammar_field) {
  // Of a request that was checked, only its grammar can still turn out to be wrong.
  const bool wrong = status.code() == StatusCode::kInvalidArgument;
  if (wrong && !grammar_field.empty()) return grammar_error(status, grammar_field);
  ApiError error = from_status(status);
  if (status.code() == StatusCode::kTooLarge) {  // the request's lengths, not its body
    error.http_status = 400;
    error.code = "context_length_exceeded";
  }
  return error;
}

}  // namespace

Generation::Generation(GenerationPlan plan, GenerationContext context, std::shared_ptr<HttpExchange> exchange)
    : plan_(std::move(plan)), context_(context), exchange_(std::move(exchange)) {
  choices_.reserve(plan_.requests.size() + plan_.scorers.size());
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    ChoiceRules rules{plan_.stops, plan_.position};
    const OutputPlan& output = plan_.output;
    rules.parser = make_output_parser(output.format, output.think_start, output.tools, *plan_.tokenizer);
    rules.parallel_calls = output.parallel_calls;
    rules.call_seed = output.call_seed + (uint64_t{i} << 32);
    rules.silent = plan_.silent;
    choices_.emplace_back(ChoiceStream(plan_.requests[i], plan_.tokenizer, std::move(rules)));
  }
  const size_t num_answers = choices_.size(), each = static_cast<size_t>(plan_.choices_per_prompt);
  for (const PromptScorer& scorer : plan_.scorers) {
    const Choice& added = choices_.emplace_back(ChoiceStream(scorer.request, plan_.tokenizer, {}));
    for (size_t i = 0; i < each; ++i) choices_[scorer.prompt * each + i].scorer = &added;  // reserved: it stays there
  }
  answers_ = std::span(choices_).first(num_answers);
}

Status Generation::submit() {
  const int64_t now = now_ns();
  if (plan_.entry) {
    plan_.entry->set_plan(plan_.id, plan_.stream, plan_.requests, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->cut();
    });
  }
  std::vector<std::shared_ptr<const Request>> sequences;
  for (size_t i = 0; i < choices_.size(); ++i) {
    sequences.push_back(choices_[i].stream.request());
    const auto& stream = sequences.back()->stream;
    stream->times.queued_ns.store(now);
    stream->set_ready_callback([weak = weak_from_this(), i] {
      auto self = weak.lock();
      if (!self) return;
      const auto exchange = self->exchange_;  // outlives the call even if the task ends first
      exchange->post([self = std::move(self), i] { self->pump(i); });
    });
  }
  if (Status status = context_.queue.push(std::move(sequences)); !status.ok()) return status;
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->client_left();
  });
  return Status();
}

void Generation::cut() {
  for (const Choice& choice : choices_) choice.stream.request()->stream->cancel();
  context_.queue.wake();
}

void Generation::abort(ApiError error) {
  exchange_->post([self = shared_from_this(), error = std::move(error)] {
    if (!self->done_) self->end_with_error(error);
  });
}

void Generation::pump(size_t index) {
  if (done_ || exchange_->disconnected()) return;  // who was cut off is about to be client_left()
  Choice& choice = choices_[index];
  if (choice.finish_sent || (choice.scorer != nullptr && !choice.scorer->finish_sent)) return;
  auto events = choice.stream.request()->stream->take(kTurnEvents);
  if (events.empty()) return;
  if (events.size() == kTurnEvents) exchange_->post([self = shared_from_this(), index] { self->pump(index); });
  const int64_t known = choice.stream.completion_tokens();
  for (auto& event : events) choice.stream.accept(std::move(event));
  if (!choice.stream.error().ok()) return end_with_error(engine_error(choice.stream.error(), plan_.grammar_field));
  if (index >= answers_.size()) return give_prompt(choice);
  observe_tokens(choice, choice.stream.completion_tokens() - known);
  emit(index, {choice.stream.take_delta(), choice.stream.finish_reason(), choice.stream.stop_string()});
  if (!choice.stream.ended()) return;
  choice.finish_sent = true;
  end_choice(choice, choice.stream.finish_reason());
  if (++num_ended_ == choices_.size()) complete();
}

// Its choices begin with what it has found; once that is all, with what they themselves have produced meanwhile.
void Generation::give_prompt(Choice& scorer) {
  ChoiceDelta found = scorer.stream.take_delta();
  found.pieces.clear();  // the text is the prompt's as it was sent
  for (ListedToken& token : found.logprobs) token.prompt_at = ++scorer.num_given;
  scorer.finish_sent = scorer.stream.ended();
  num_ended_ += scorer.finish_sent ? 1 : 0;
  for (size_t i = 0; i < answers_.size() && !done_; ++i) {
    if (answers_[i].scorer != &scorer) continue;
    if (!found.logprobs.empty()) emit(i, {.delta = found});
    if (scorer.finish_sent) pump(i);
  }
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

// Sends (streaming) or keeps (otherwise) what this choice has produced since the last time.
void Generation::emit(size_t index, ChoiceOutput output) {
  if (!plan_.stream) return choices_[index].whole.append(std::move(output.delta));
  std::string out;
  if (!streaming_) {
    streaming_ = true;
    context_.metrics.http_answer(200);
    exchange_->begin_stream(sse_head());
    Usage prompt = usage();
    prompt.completion_tokens = prompt.reasoning_tokens = 0;
    out += plan_.writer->begin(prompt);
  }
  const bool last_of_all = output.finish_reason != nullptr && num_ended_ + 1 == choices_.size();
  const AnswerTotals sum = last_of_all ? totals() : AnswerTotals();
  out += plan_.writer->delta(index, std::move(output), last_of_all ? &sum : nullptr);
  if (last_of_all) out += plan_.writer->end(sum);  // one write: two may be more than a connection holds unsent
  exchange_->write(out);
}

void Generation::end_choice(const Choice& choice, const char* reason) {
  const auto& request = *choice.stream.request();
  const auto& times = request.stream->times;
  const int64_t now = now_ns();
  if (plan_.entry) plan_.entry->choice_ended(static_cast<size_t>(&choice - choices_.data()), reason);
  const int64_t first = times.first_token_ns.load();
  context_.metrics.finished({reason, static_cast<int64_t>(request.prompt_ids.size()), choice.stream.completion_tokens(),
                             seconds_between(times.queued_ns.load(), times.admitted_ns.load()),
                             seconds_between(times.admitted_ns.load(), first), seconds_between(first, now),
                             seconds_between(plan_.received_ns, now)});
}

Usage Generation::usage() const {
  Usage out;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const auto& request = *answers_[i].stream.request();
    out.completion_tokens += answers_[i].stream.completion_tokens();
    out.reasoning_tokens += answers_[i].stream.reasoning_tokens();
    if (i % static_cast<size_t>(plan_.choices_per_prompt) != 0) continue;
    // Choices of one prompt find what the first of them computed; what was cached before is the smallest share.
    int32_t cached = INT32_MAX;
    for (int32_t j = 0; j < plan_.choices_per_prompt; ++j) {
      cached = std::min(cached, answers_[i + j].stream.request()->stream->cached_len.load());
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
  for (const Choice& choice : answers_) {
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
    exchange_->end_stream();
    return done();
  }
  const bool large = std::any_of(answers_.begin(), answers_.end(), [](const Choice& choice) {
    return choice.whole.logprobs.size() > kLargeLogprobs || choice.stream.completion_tokens() > kLargeAnswerTokens;
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
  std::vector<ChoiceOutput> outputs;
  for (Choice& choice : answers_) {
    outputs.push_back({std::move(choice.whole), choice.stream.finish_reason(), choice.stream.stop_string()});
  }
  const Json body = plan_.writer->whole(std::move(outputs), totals());
  HttpResponse response;
  response.body = dump_json(body);
  context_.metrics.http_answer(200);
  exchange_->respond(std::move(response));
}

void Generation::end_with_error(const ApiError& error) {
  for (const Choice& choice : answers_) {
    if (!choice.finish_sent) end_choice(choice, "error");
  }
  cancel_running();
  if (streaming_) {
    exchange_->write(plan_.writer->fail(error));
    exchange_->end_stream();
  } else {
    context_.metrics.http_answer(error.http_status);
    exchange_->respond(plan_.writer->refusal(error));
  }
  done();
}

void Generation::client_left() {
  if (done_) return;
  for (const Choice& choice : answers_) {
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
  for (const Choice& choice : choices_) choice.stream.request()->stream->set_ready_callback(nullptr);
  if (auto on_done = std::exchange(on_done_, nullptr)) on_done();
}

}  // namespace tailrace
