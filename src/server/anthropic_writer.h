// Answers of /v1/messages: content blocks, as named events or as one message.
#pragma once

#include <memory>
#include <string>

#include "server/answer_writer.h"

namespace tailrace {

struct AnthropicAnswer {
  std::string id;  // msg_...
  std::string model;
  std::string request_id;      // in errors
  bool hide_thinking = false;  // it goes out in its signature alone
  int32_t max_tokens = 0;  // as asked for: an answer that ends with fewer has filled the context
};

std::unique_ptr<AnswerWriter> make_anthropic_writer(AnthropicAnswer answer);

}  // namespace tailrace
