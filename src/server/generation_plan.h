// From a checked request to engine requests: template, tokens, length limits, defaults, seeds. No sockets, no threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "server/body_budget.h"
#include "server/answer_writer.h"
#include "server/chat_prompt.h"
#include "server/openai_request.h"
#include "server/request_log.h"
#include "server/seed_source.h"
#include "server/served_model.h"
#include "text/detokenizer.h"

namespace tailrace {

size_t measure_tokens(const Tokenizer& tokenizer);

// How the answers' tokens become reasoning, calls and content.
struct OutputPlan {
  OutputFormat format;                        // {none, none}: all text is content
  ThinkStart think_start = ThinkStart::kOutside;
  std::shared_ptr<const OfferedTools> tools;  // null: none
  bool parallel_calls = true;                 // else a choice ends with its first call
  uint64_t call_seed = 0;                     // the ids of calls are drawn from it
};

// Finds the log probabilities of a prompt's tokens, which the answers of its choices begin with.
struct PromptScorer {
  std::shared_ptr<const Request> request;
  size_t prompt = 0;
};

struct GenerationPlan {
  std::shared_ptr<BodyShare> body_share;  // of what `writer` keeps of the request, which it outlives; null: nothing
  std::unique_ptr<AnswerWriter> writer;  // words the answer; APIs other than OpenAI's completions put their own here
  std::string id;                        // the answer's, as its writer says it
  bool stream = false;
  std::vector<std::shared_ptr<const Request>> requests;  // choices in order: all of prompt 0, all of prompt 1 ...
  int32_t choices_per_prompt = 1;
  std::vector<PromptScorer> scorers;  // of prompts whose tokens are listed
  std::vector<std::string> stops;
  bool silent = false;                   // max_tokens 0: the requests' one token is nobody's
  TextPosition position = TextPosition::kBegin;
  std::shared_ptr<const Tokenizer> tokenizer;
  OutputPlan output;
  std::string grammar_field;             // which asks for the requests' constraint, and is told of its failures; or ""
  int64_t received_ns = 0;
  std::shared_ptr<RequestEntry> entry;  // told of what becomes of it; null: nobody listens
};

// What a chat's prompt is. Errors: 404 model_not_found; 400 context_length_exceeded for text that cannot fit; what the
// chat template says.
ApiExpected<ChatPrompt> chat_prompt(const ServedModel& model, const ChatRequest& request);

// Errors: chat_prompt's; 400 context_length_exceeded when the prompt leaves no room for one token, or prompt +
// max_tokens is more than the context (never clamped but where end_with_context says so); what the chat template says.
// Without max_tokens an answer may use what the prompt leaves (or generation_config's max_new_tokens, when that is
// less).
ApiExpected<GenerationPlan> plan_chat(const ServedModel& model, const ChatRequest& request, SeedSource& seeds);
ApiExpected<GenerationPlan> plan_completion(const ServedModel& model, const CompletionRequest& request,
                                            SeedSource& seeds);

// kTooLarge for text that no context could hold, found without tokenizing it.
Status check_text_bytes(const ServedModel& model, size_t bytes);

ApiExpected<std::vector<TokenId>> text_prompt_ids(const ServedModel& model, const std::string& text,
                                                  bool add_special_tokens);
// Ok when `name` is "" or the model's.
Status check_model_name(const ServedModel& model, const std::string& name);

RequestBounds bounds_of(const ServedModel& model, int32_t max_queued_requests);

}  // namespace tailrace
