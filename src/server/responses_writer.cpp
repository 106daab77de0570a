#include "server/responses_writer.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/unix_time.h"
#include "server/http_answer.h"
#include "server/openai_response.h"
#include "server/sse.h"

namespace tailrace {
namespace {

Json input_output_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

class ResponsesWriter : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesAnswer answer) : answer_(std::move(answer)) {}

  std::string begin(const Usage&) override {
    items_.emplace(answer_.rules, [this](const char* type, Json members) { add_event(type, std::move(members)); });
    add_event("response.created", {{"response", answer_.head}});
    add_event("response.in_progress", {{"response", answer_.head}});
    return std::exchange(events_, {});
  }

  std::string delta(size_t, ChoiceOutput output, const AnswerTotals*) override {
    take(std::move(output));
    return std::exchange(events_, {});
  }

  std::string end(const AnswerTotals& totals) override {
    Json response = finished(totals);
    add_event(cut() ? "response.incomplete" : "response.completed", {{"response", std::move(response)}});
    return std::exchange(events_, {});
  }

  std::string fail(const ApiError& error) override {
    Json response = answer_.head;
    response["status"] = "failed";
    response["output"] = items_->output();
    const bool too_long = error.code == "context_length_exceeded";  // which agents know what to do about
    response["error"] = {{"code", too_long ? error.code : "server_error"}, {"message", error.message}};
    add_event("response.failed", {{"response", std::move(response)}});
    return std::exchange(events_, {});
  }

  Json whole(std::vector<ChoiceOutput> choices, const AnswerTotals& totals) override {
    CHECK(choices.size() == 1);
    items_.emplace(answer_.rules, nullptr);
    take(std::move(choices[0]));
    return finished(totals);
  }

  HttpResponse refusal(const ApiError& error) override { return to_response(error); }

 private:
  void add_event(const char* type, Json members) {
    Json event = {{"type", type}, {"sequence_number", num_events_++}};
    event.update(members);
    events_ += sse_event(type, event);
  }

  void take(ChoiceOutput output) {
    items_->add(std::move(output.delta));
    if (output.finish_reason == nullptr) return;
    finish_reason_ = output.finish_reason;
    items_->finish(cut());
  }

  bool cut() const { return finish_reason_ != "stop" && finish_reason_ != "tool_calls"; }

  // The whole response; stores it.
  Json finished(const AnswerTotals& totals) {
    Json response = answer_.head;
    response["status"] = cut() ? "incomplete" : "completed";
    if (cut()) {
      response["incomplete_details"] = {{"reason", finish_reason_ == "length" ? "max_output_tokens" : finish_reason_}};
    } else {
      response["completed_at"] = unix_seconds();
    }
    response["output"] = items_->output();
    response["usage"] = input_output_usage(totals.usage);
    response["timings"] = timings_json(totals.timings, totals.usage);
    if (answer_.pending && !put(response)) response["store"] = false;
    return response;
  }

  bool put(const Json& response) {
    return answer_.store->put(std::move(answer_.pending), response["id"], dump_json(response), response["output"]);
  }

  ResponsesAnswer answer_;
  std::optional<ResponseItems> items_;
  std::string finish_reason_;
  std::string events_;  // not handed out yet
  int64_t num_events_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(ResponsesAnswer answer) {
  return std::make_unique<ResponsesWriter>(std::move(answer));
}

}  // namespace tailrace
