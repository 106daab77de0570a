// Chat completions and completions in OpenAI's words.
#pragma once

#include <memory>
#include <vector>

#include "server/answer_writer.h"
#include "server/echoed_prompt.h"
#include "server/openai_response.h"
#include "text/tokenizer.h"

namespace tailrace {

struct OpenAiAnswer {
  AnswerHead head;
  size_t num_choices = 1;
  int32_t num_top_logprobs = -1;  // as in SamplingParams
  std::vector<std::shared_ptr<const EchoedPrompt>> echo;  // by choice, what its text begins with; empty: nothing
  bool include_usage = false;                             // streamed: usage in a last chunk of its own
  std::shared_ptr<const Tokenizer> tokenizer;
};

std::unique_ptr<AnswerWriter> make_openai_writer(OpenAiAnswer answer);

}  // namespace tailrace
