// Chat completions and completions in OpenAI's words.
#pragma once

#include <memory>

#include "server/answer_writer.h"
#include "server/openai_response.h"
#include "text/tokenizer.h"

namespace tailrace {

struct OpenAiAnswer {
  AnswerHead head;
  size_t num_choices = 1;
  bool logprobs = false;
  std::vector<std::string> echo;  // by choice, what its text begins with; empty: nothing
  bool include_usage = false;     // streamed: usage in a last chunk of its own
  std::shared_ptr<const Tokenizer> tokenizer;
};

std::unique_ptr<AnswerWriter> make_openai_writer(OpenAiAnswer answer);

}  // namespace tailrace
