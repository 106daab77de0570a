// What /v1/messages and /v1/messages/count_tokens were asked, checked field by field. Pure
// functions; no model needed.
//
// As in openai_request.h: null means absent, and a field that is unknown or not done here is an
// error that names it. Without effect, by the standard's leave: cache_control (a hint; every prefix
// is cached), metadata, and service_tier and speed where they ask for what there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/openai_request.h"

namespace tailrace {

struct MessagesRequest {
  enum class Thinking { kUnsaid, kOff, kOn, kAdaptive };

  ChatRequest chat;  // but for the thinking, which the template decides about
  Thinking thinking = Thinking::kUnsaid;
  bool hide_thinking = false;  // "display": "omitted"
  std::string effort;          // "" when absent; else low, medium, high, xhigh or max
};

ApiExpected<MessagesRequest> parse_messages_request(std::string_view body,
                                                    const JsonLimits& limits = {});
// The same fields, but max_tokens, stream and those of sampling.
ApiExpected<MessagesRequest> parse_count_tokens_request(std::string_view body,
                                                        const JsonLimits& limits = {});

}  // namespace tailrace
