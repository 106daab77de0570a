#include "server/routes.h"

#include <algorithm>

#include "server/api_key.h"
#include "server/http_answer.h"

namespace tailrace {
namespace {

constexpr std::string_view kGet[] = {"/health", "/metrics", "/v1/models"};
constexpr std::string_view kPost[] = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                                      "/flush_cache"};

}  // namespace

bool always_answered(std::string_view path) { return path == "/health" || path == "/metrics"; }

std::optional<HttpResponse> answer_by_head(const HttpRequest& head, const std::string& api_key,
                                           const std::function<int()>& health_status) {
  const bool is_get = std::count(std::begin(kGet), std::end(kGet), head.path) > 0 || head.path.rfind("/v1/models/", 0) == 0;
  const bool is_post = std::count(std::begin(kPost), std::end(kPost), head.path) > 0;
  const bool allowed = always_answered(head.path) || authorized(api_key, head.authorization);
  if (head.method == "HEAD") {  // never a body, whatever the answer: a client would read it as the next response
    HttpResponse response;
    response.status = !allowed ? 401 : head.path == "/health" ? health_status() : is_get ? 200 : is_post ? 405 : 404;
    return response;
  }
  if (!allowed) {
    HttpResponse response =
        to_response({401, "Missing or wrong API key: send `Authorization: Bearer KEY`.", "", "invalid_api_key"});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  const std::string shown = head.path.substr(0, 200);
  if (!is_get && !is_post) return to_response({404, "There is no " + shown + " here.", "", "not_found"});
  const char* method = is_get ? "GET" : "POST";
  if (head.method == method) return std::nullopt;
  HttpResponse response =
      to_response({405, shown + " takes " + method + ", not " + head.method + ".", "", "method_not_allowed"});
  response.headers.emplace_back("Allow", method);
  return response;
}

}  // namespace tailrace
