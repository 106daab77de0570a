// What POST /v1/responses was asked, checked field by field; the rules are those of openai_request.h.
#pragma once

#include <string>
#include <string_view>

#include "server/openai_request.h"

namespace tailrace {

struct ResponsesRequest {
  ChatRequest chat;  // all but its messages
  std::string instructions;
  std::string previous_id;  // previous_response_id; "" when absent
  Json input;               // a string, or an array of items that ResponsesConversation has still to check
  bool store = true;
  bool encrypted_reasoning = false;  // include holds reasoning.encrypted_content
  Json echo = Json::object();        // members of the answer that repeat the request
};

// `may_store`: whether answers can be stored here: without, an absent `store` means false, and true is an error.
ApiExpected<ResponsesRequest> parse_responses_request(std::string_view body, const RequestBounds& bounds,
                                                      bool may_store, const JsonLimits& limits = {});

// What POST /v1/responses/input_tokens was asked: what makes the prompt, and nothing else.
ApiExpected<ResponsesRequest> parse_input_tokens_request(std::string_view body, const JsonLimits& limits = {});

// Whether `include` may hold `name`, and what is wrong where it may not.
bool is_includable(std::string_view name);
std::string unknown_include(const std::string& name);

}  // namespace tailrace
