// What the server needs to know of the loaded model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "output/output_format.h"
#include "text/grammar.h"
#include "text/text_model.h"

namespace tailrace {

struct ServedModel {
  std::string name;
  std::shared_ptr<const TextModel> text;
  std::shared_ptr<const Grammars> grammars;  // null: none can be had, by no_grammars_reason
  std::string no_grammars_reason;
  OutputFormat output;                // how it writes reasoning and calls; from settle_output_format()
  int32_t context_length = 0;
  int32_t vocab_size = 0;             // rows of the logits that are real tokens
  int32_t max_running_requests = 1;   // bounds n
  size_t max_token_bytes = 0;         // longest token; from measure_tokens()
  int64_t created_s = 0;              // Unix time, for /v1/models
};

}  // namespace tailrace
