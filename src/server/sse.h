// Server-sent events as OpenAI's clients read them.
#pragma once

#include <string>

#include "server/http_exchange.h"
#include "server/json.h"

namespace tailrace {

inline constexpr const char* kSseDone = "data: [DONE]\n\n";

inline std::string sse_event(const Json& json) { return "data: " + dump_json(json) + "\n\n"; }

inline std::string sse_event(const std::string& name, const Json& json) {
  return "event: " + name + "\n" + sse_event(json);
}

inline HttpResponse sse_head() {
  HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return head;
}

}  // namespace tailrace
