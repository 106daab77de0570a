// Routes: which paths there are, who may ask for them, and the answers that a request's headers decide alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/http_exchange.h"

namespace tailrace {

enum class RouteKind {
  kPlain,
  kOccupies,   // reads, but keeps others from it meanwhile: nothing for web pages of other origins
  kGenerates,  // its requests are listed in /v1/requests, and /abort ends them
  kOpen,       // answered without a key
  kProbe,      // without a key, at all times, also beyond --max-connections
};

// One method of one path. "{name}" stands for one segment of a path.
struct Route {
  std::string_view method, path;
  RouteKind kind = RouteKind::kPlain;
  std::string_view query = {};  // parameters that it takes, parted by blanks; probes and open ones ignore any
  bool whole_rest = false;      // the name at the path's end may hold slashes
};

// docs/openapi.json describes each (openapi_test.cpp).
std::span<const Route> routes();

// The first route that takes `method` ("HEAD" is taken as "GET" is) on this path; null when there is none.
const Route* find_route(std::string_view method, std::string_view path);

// "GET, POST": what the path takes; "" for one that is not known.
std::string methods_of(std::string_view path);

bool always_answered(std::string_view path);

// What needs no body: a missing or wrong key (401), an unknown path (404), another method than the path's (405), a query
// parameter that it does not take (400). None for what a route answers. `keys_required`: whether there are keys.
std::optional<HttpResponse> answer_by_head(const HttpRequest& head, bool keys_required);

}  // namespace tailrace
