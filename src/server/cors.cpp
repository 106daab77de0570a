#include "server/cors.h"

#include <algorithm>

#include "server/json.h"

namespace tailrace {
namespace {

constexpr size_t kMaxRequestedHeaders = 1024;
constexpr const char* kExposed = "X-Request-Id, Request-Id, Retry-After";
constexpr const char* kPreflightSeconds = "600";

bool is_header_list(std::string_view text) {
  return text.size() <= kMaxRequestedHeaders &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return (c < 0x80 && std::isalnum(c)) || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

}  // namespace

Status check_origin(const std::string& origin) {
  // Of pages without a host: files, in a browser and in a program that is built on one.
  if (origin == "*" || origin == "null" || origin == "file://") return Status();
  const size_t scheme = origin.find("://");
  const std::string_view host =
      scheme == std::string::npos ? "" : std::string_view(origin).substr(scheme + 3);
  const bool plain = std::all_of(origin.begin(), origin.end(),
                                 [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (scheme != 0 && !host.empty() && plain &&
      host.find_first_of("/?#@,") == std::string_view::npos)
    return Status();
  return invalid("--cors-allow-origin " + dump_json(origin) +
                 ": an origin is scheme://host[:port] with nothing behind it, null, file:// or *");
}

bool Cors::allows(const std::string& origin) const {
  return !origin.empty() &&
         std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& known) { return known == "*" || known == origin; });
}

void Cors::add_headers(const HttpRequest& head, HttpHeaders& headers) const {
  if (origins_.empty()) return;
  headers.emplace_back("Vary", "Origin");
  if (!allows(head.origin)) return;
  headers.emplace_back("Access-Control-Allow-Origin", head.origin);
  headers.emplace_back("Access-Control-Expose-Headers", kExposed);
}

std::optional<HttpResponse> Cors::preflight(const HttpRequest& head,
                                            std::string_view methods) const {
  if (head.method != "OPTIONS" || head.requested_method.empty() || !allows(head.origin))
    return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", std::string(methods)},
                      {"Access-Control-Max-Age", kPreflightSeconds}};
  if (!head.requested_headers.empty() && is_header_list(head.requested_headers)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", head.requested_headers);
  }
  return response;
}

}  // namespace tailrace
