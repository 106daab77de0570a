// The JSON of answers in OpenAI's dialects: whole responses, stream chunks, usage, log probabilities.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_writer.h"
#include "server/json.h"
#include "text/tokenizer.h"

namespace tailrace {

enum class ApiDialect { kChat, kCompletion };

// Fields that all chunks of an answer share.
struct AnswerHead {
  ApiDialect dialect = ApiDialect::kChat;
  std::string id;           // chatcmpl-..., cmpl-...
  std::string model;
  int64_t created_s = 0;    // Unix time
};

// One choice's part of a chunk or of a whole response.
struct ChoicePart {
  int32_t index = 0;
  ChoiceDelta delta;
  const char* finish_reason = nullptr;  // null: not yet
  int32_t num_top_logprobs = -1;        // as in SamplingParams
  std::vector<int64_t> text_offsets;    // completions: of delta.logprobs, in code points of the text
};

// Bytes that begin a code point; of a token cut inside one, the part that holds its first byte counts it.
int64_t count_code_points(std::string_view bytes);
// {"token", "logprob", "bytes", "top_logprobs"} of a token in a chat.
Json token_json(const TokenEvent& event, const Tokenizer& tokenizer);
Json usage_json(const Usage& usage);
Json timings_json(const AnswerTimings& timings, const Usage& usage);
Json choice_json(ApiDialect dialect, const ChoicePart& part, const Tokenizer& tokenizer, bool stream);
// A chunk (stream) or a response with these choices; the caller adds usage and timings.
Json answer_json(const AnswerHead& head, bool stream, Json choices);
// The first chunk of a chat choice: role and empty content.
Json role_json(int32_t index);

}  // namespace tailrace
