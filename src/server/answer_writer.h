// AnswerWriter: words one answer in an API's dialect: server-sent events while it streams, or one JSON document.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "server/answer_pieces.h"
#include "server/api_error.h"
#include "server/http_exchange.h"
#include "server/json.h"

namespace tailrace {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the completion: reasoning and its markers
};

// Times of a request, as llama.cpp names them, in `timings`. Of several choices the earliest start and the latest end.
struct AnswerTimings {
  int64_t received_ns = 0, queued_ns = 0, admitted_ns = 0, first_token_ns = 0, finished_ns = 0;
  int64_t gpu_idle_us = 0, preemptions = 0;
};

struct AnswerTotals {
  Usage usage;
  AnswerTimings timings;
};

// What a choice has produced: since the last time where it streams, else from its beginning to its end.
struct ChoiceOutput {
  ChoiceDelta delta;
  const char* finish_reason = nullptr;  // "stop", "length" or "tool_calls"; null: it goes on
  std::string stop_string;              // the one that ended it; "" where none did
};

// One per answer; called by one thread at a time. A stream is begin, deltas, then end or fail; else whole or refusal is
// called, once.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // What goes out ahead of the first delta; completion_tokens is 0 yet.
  virtual std::string begin(const Usage& usage) = 0;
  // `totals`: null until the last choice ends. Called even where the delta is empty.
  virtual std::string delta(size_t choice, ChoiceOutput output, const AnswerTotals* totals) = 0;
  // After every choice has ended.
  virtual std::string end(const AnswerTotals& totals) = 0;
  // The stream's last events where it breaks off.
  virtual std::string fail(const ApiError& error) = 0;

  virtual Json whole(std::vector<ChoiceOutput> choices, const AnswerTotals& totals) = 0;
  // The answer where nothing else was sent.
  virtual HttpResponse refusal(const ApiError& error) = 0;
};

}  // namespace tailrace
