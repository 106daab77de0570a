#include "server/routes.h"

#include <algorithm>

#include "server/http_answer.h"
#include "server/query.h"

namespace tailrace {
namespace {

constexpr Route kRoutes[] = {
    {"GET", "/health", RouteKind::kProbe},
    {"GET", "/ready", RouteKind::kProbe},
    {"GET", "/metrics", RouteKind::kProbe},
    {"GET", "/openapi.json", RouteKind::kOpen},
    {"GET", "/server_info"},
    {"GET", "/v1/models", RouteKind::kPlain, "limit client_version beta after_id before_id"},  // Codex, Anthropic's
    {"GET", "/v1/models/{model}", RouteKind::kPlain, "beta", /*whole_rest=*/true},
    {"POST", "/v1/chat/completions", RouteKind::kGenerates},
    {"POST", "/v1/completions", RouteKind::kGenerates},
    {"POST", "/v1/responses", RouteKind::kGenerates},
    {"POST", "/v1/messages", RouteKind::kGenerates, "beta"},  // which Anthropic's clients put on every beta's request
    {"POST", "/v1/messages/count_tokens", RouteKind::kPlain, "beta"},
    {"POST", "/v1/responses/input_tokens"},
    {"GET", "/v1/responses/{id}/input_items", RouteKind::kPlain, "limit order after include include[]"},
    {"POST", "/v1/responses/{id}/cancel"},
    {"GET", "/v1/responses/{id}", RouteKind::kPlain, "stream include include[]"},
    {"DELETE", "/v1/responses/{id}"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/flush_cache"},
    {"POST", "/abort"},
    {"GET", "/v1/requests"},
    {"GET", "/debug/steps", RouteKind::kPlain, "since"},
    {"GET", "/debug/trace", RouteKind::kOccupies, "seconds"},
    {"GET", "/", RouteKind::kOpen},
    {"GET", "/assets/{file}", RouteKind::kOpen},
};

bool matches(const Route& route, std::string_view path) {
  std::string_view pattern = route.path;
  while (true) {
    const size_t brace = pattern.find('{');
    if (path.substr(0, brace) != pattern.substr(0, brace)) return false;
    if (brace == std::string_view::npos) return true;
    pattern.remove_prefix(pattern.find('}') + 1);
    path.remove_prefix(brace);
    const size_t end = pattern.empty() && route.whole_rest ? path.size() : std::min(path.find('/'), path.size());
    if (end == 0) return false;
    path.remove_prefix(end);
  }
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(std::string_view method, std::string_view path) {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  const auto found = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& route) {
    return route.method == wanted && matches(route, path);
  });
  return found == std::end(kRoutes) ? nullptr : found;
}

std::string methods_of(std::string_view path) {
  std::string out;
  for (const Route& route : kRoutes) {
    if (!matches(route, path) || out.find(route.method) != std::string::npos) continue;
    out += (out.empty() ? "" : ", ") + std::string(route.method);
  }
  return out;
}

bool always_answered(std::string_view path) {
  const Route* route = find_route("GET", path);
  return route != nullptr && route->kind == RouteKind::kProbe;
}

std::optional<HttpResponse> answer_by_head(const HttpRequest& head, bool keys_required) {
  const Route* route = find_route(head.method, head.path);
  const bool open = !keys_required || (route != nullptr && (route->kind == RouteKind::kOpen || route->kind == RouteKind::kProbe));
  if (!open && !head.key) {
    HttpResponse response =
        to_response({401, "Missing or wrong API key: send `Authorization: Bearer KEY`.", "", "invalid_api_key"});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  const std::string shown = head.path.substr(0, 200), methods = methods_of(head.path);
  if (route != nullptr) {
    const bool any_query = route->kind == RouteKind::kOpen || route->kind == RouteKind::kProbe;
    const auto fault = any_query ? std::nullopt : Query(head.query).fault(route->query, head.method + " " + shown);
    return fault ? std::optional(to_response(*fault)) : std::nullopt;
  }
  if (methods.empty()) return to_response({404, "There is no " + shown + " here.", "", "not_found"});
  HttpResponse response =
      to_response({405, shown + " takes " + methods + ", not " + head.method + ".", "", "method_not_allowed"});
  response.headers.emplace_back("Allow", methods);
  return response;
}

}  // namespace tailrace
