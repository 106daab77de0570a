// What /v1/chat/completions and /v1/completions were asked, checked field by field. Pure functions; no model needed.
//
// Rules: null means absent for every optional field. A field that this server knows but does not do is an error that
// names it, and so is a field that it does not know. Without effect: store, and what request_labels.h reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/request.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/chat_tools.h"
#include "server/json.h"

namespace tailrace {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;     // of one stop string
inline constexpr size_t kMaxMessages = 1 << 16;

// What a request may not exceed, known once the model is.
struct RequestBounds {
  int32_t vocab_size = 0;          // ids are below this
  int32_t max_choices = 1;         // n: the rows that can run together
  int32_t max_sequences = 1;       // prompts x n: what the queue can take at once
};

// Fields that both endpoints share. Absent sampling fields stay absent: the model's defaults apply to them.
struct GenerationParams {
  std::string model;                        // "" when absent
  bool stream = false;
  bool include_usage = false;
  int32_t n = 1;
  std::optional<int32_t> max_tokens;        // >= 1; of a completion 0 too: the prompt is computed, nothing is said
  bool end_with_context = false;            // max_tokens may be more than the context has room for
  int32_t min_tokens = 0;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;             // 0: off
  std::optional<uint64_t> seed;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int32_t num_top_logprobs = -1;            // as in SamplingParams
  std::string cache_salt;
  std::optional<AnswerForm> form;           // what the content must be
};

struct ChatRequest {
  GenerationParams params;
  Json messages;                            // validated; null members dropped, text parts joined, developer -> system
  ToolParams tools;
  std::string reasoning_effort;             // "" when absent; else one of OpenAI's words
  Json template_kwargs = Json::object();    // chat_template_kwargs
  bool add_generation_prompt = true;
  std::optional<int32_t> thinking_budget;   // tokens of reasoning, at most
};

struct CompletionRequest {
  GenerationParams params;
  std::vector<std::variant<std::string, std::vector<TokenId>>> prompts;  // at least one
  bool echo = false;                        // texts begin with the prompt's

  // Whether the prompts' tokens have log probabilities too: for each prompt one more sequence finds them.
  bool lists_prompts() const { return echo && params.num_top_logprobs >= 0; }
};

struct TokenizeRequest {
  std::variant<std::string, ChatRequest> source;  // prompt, or messages
  bool add_special_tokens = true;                 // prompt only
  std::string model;                              // prompt only, may be empty; a chat names its own
};

struct DetokenizeRequest {
  std::string model;  // may be empty
  std::vector<TokenId> tokens;
};

// The fields of sampling that every dialect of OpenAI's has here: temperature to logit_bias, and cache_salt.
void read_sampling_params(FieldReader& fields, const RequestBounds& bounds, GenerationParams& out);
// chat_template_kwargs.
void read_template_kwargs(FieldReader& fields, Json& out);
// One of OpenAI's words for it, from none to xhigh.
bool is_reasoning_effort(std::string_view word);

// `body` is the raw request body; `limits` are of its JSON.
ApiExpected<ChatRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds,
                                            const JsonLimits& limits = {});
ApiExpected<CompletionRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds,
                                                        const JsonLimits& limits = {});
ApiExpected<TokenizeRequest> parse_tokenize_request(std::string_view body, const JsonLimits& limits = {});
ApiExpected<DetokenizeRequest> parse_detokenize_request(std::string_view body, int32_t vocab_size,
                                                        const JsonLimits& limits = {});
// {"request_id": ID} or {"all": true}: the id, "" for all.
ApiExpected<std::string> parse_abort_request(std::string_view body, const JsonLimits& limits = {});

}  // namespace tailrace
