// From a checked request to engine requests: template, tokens, length limits, defaults, seeds. No sockets, no threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "text/detokenizer.h"
#include "text/text_model.h"

namespace tailrace {

// What the server needs to know of the loaded model.
struct ServedModel {
  std::string name;
  std::shared_ptr<const TextModel> text;
  int32_t context_length = 0;
  int32_t vocab_size = 0;             // rows of the logits that are real tokens
  int32_t max_running_requests = 1;   // bounds n
  size_t max_token_bytes = 0;         // longest token; from measure_tokens()
  int64_t created_s = 0;              // Unix time, for /v1/models
};

size_t measure_tokens(const Tokenizer& tokenizer);

// Seeds for requests that give none. Thread-safe.
class SeedSource {
 public:
  explicit SeedSource(uint64_t start) : state_(start) {}
  uint64_t next();

 private:
  std::atomic<uint64_t> state_;
};

struct GenerationPlan {
  AnswerHead head;
  bool stream = false, include_usage = false;
  std::vector<std::shared_ptr<const Request>> requests;  // choices in order: all of prompt 0, all of prompt 1 ...
  int32_t choices_per_prompt = 1;
  std::vector<std::string> stops;
  TextPosition position = TextPosition::kBegin;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t received_ns = 0;
};

// Errors: 404 model_not_found; 400 context_length_exceeded when the prompt leaves no room for one token, or prompt +
// max_tokens is more than the context (never clamped); what the chat template says. Without max_tokens an answer may use
// what the prompt leaves (or generation_config's max_new_tokens, when that is less).
ApiExpected<GenerationPlan> plan_chat(const ServedModel& model, const ChatRequest& request, SeedSource& seeds);
ApiExpected<GenerationPlan> plan_completion(const ServedModel& model, const CompletionRequest& request,
                                            SeedSource& seeds);

// kTooLarge for text that no context could hold, found without tokenizing it.
Status check_text_bytes(const ServedModel& model, size_t bytes);

ApiExpected<std::vector<TokenId>> chat_prompt_ids(const ServedModel& model, const ChatRequest& request);
ApiExpected<std::vector<TokenId>> text_prompt_ids(const ServedModel& model, const std::string& text,
                                                  bool add_special_tokens);
// Ok when `name` is "" or the model's.
Status check_model_name(const ServedModel& model, const std::string& name);

RequestBounds bounds_of(const ServedModel& model, int32_t max_queued_requests);

}  // namespace tailrace
