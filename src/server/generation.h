// Generation: one accepted request while it is being answered; connects the engine's token streams to the HTTP answer.
//
// All state is touched on the exchange's executor only. Whoever ends it (the last finish event, an engine error, the client
// leaving, a timeout, the end of draining) cancels the sequences that still run; the engine's finish events for those
// find nobody, which is fine.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/request_queue.h"
#include "server/choice_stream.h"
#include "server/generation_plan.h"
#include "server/http_exchange.h"
#include "server/metrics.h"
#include "server/worker_pool.h"

namespace tailrace {

struct GenerationContext {
  RequestQueue& queue;
  Metrics& metrics;
  WorkerPool& workers;  // builds large bodies
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationPlan plan, GenerationContext context, std::shared_ptr<HttpExchange> exchange);

  // `callback` runs once, on the exchange's executor, when the answer is complete or given up; to be set before submit.
  void set_on_done(std::function<void()> callback) { on_done_ = std::move(callback); }

  // Queues all sequences or none; on an error nothing was answered yet and the caller aborts. The caller keeps a reference
  // until on_done.
  Status submit();
  // From any thread: the choices that run end where they are, with finish_reason "abort".
  void cut();
  // From any thread: ends the answer with `error`, as a response or, once streaming, as an event.
  void abort(ApiError error);
  // Cancels the sequences; for the time when the executor runs no more.
  void abandon() { cancel_running(); }

  int64_t received_ns() const { return plan_.received_ns; }

 private:
  struct Choice {
    explicit Choice(ChoiceStream choice_stream) : stream(std::move(choice_stream)) {}

    ChoiceStream stream;
    const Choice* scorer = nullptr;  // comes before it: the log probabilities of its prompt
    bool finish_sent = false;
    int32_t num_given = 0;           // of a scorer: tokens that its prompt's choices have got
    int64_t last_token_ns = 0;
    ChoiceDelta whole;           // not streaming: what has come so far
  };

  void pump(size_t index);
  void give_prompt(Choice& scorer);
  void observe_tokens(Choice& choice, int64_t count);
  void emit(size_t index, ChoiceOutput output);
  void end_choice(const Choice& choice, const char* reason);
  void complete();
  void respond_whole();
  void end_with_error(const ApiError& error);
  void client_left();
  void cancel_running();
  void done();
  Usage usage() const;
  AnswerTimings timings() const;
  AnswerTotals totals() const { return {usage(), timings()}; }

  const GenerationPlan plan_;
  const GenerationContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::function<void()> on_done_;
  // The answer's choices, then the scorers of its prompts, whose tokens each of a prompt's choices begins with.
  std::vector<Choice> choices_;
  std::span<Choice> answers_;  // the former
  size_t num_ended_ = 0;
  bool streaming_ = false, done_ = false;
};

}  // namespace tailrace
