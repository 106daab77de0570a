// Routes: which paths there are, who may ask for them, and the answers that a request's headers decide alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_exchange.h"

namespace tailrace {

// /health and /metrics: without a key, at all times, also beyond --max-connections.
bool always_answered(std::string_view path);

// What needs no body: HEAD, a missing or wrong key (401), an unknown path (404), another method than the path's (405).
// None for a GET or POST that a route answers. `health_status` is the status /health has now.
std::optional<HttpResponse> answer_by_head(const HttpRequest& head, const std::string& api_key,
                                           const std::function<int()>& health_status);

}  // namespace tailrace
