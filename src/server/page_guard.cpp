#include "server/page_guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>

#include "server/http_answer.h"
#include "server/json.h"
#include "server/routes.h"

namespace tailrace {
namespace {

constexpr size_t kShownBytes = 200;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return c < 0x80 ? std::tolower(c) : c; });
  return out;
}

bool is_address(const std::string& text) {
  in6_addr parsed{};
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 || inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

// The name or address in "name", "name:80" and "[::1]:80".
std::string_view name_of(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// Whether a page of `origin` came from the server that is asked as `host`: browsers leave a scheme's own port out of both, others
// may not.
bool is_own_origin(const std::string& origin, const std::string& host) {
  const auto same = [&](std::string_view scheme, std::string_view port) {
    if (host.empty() || !origin.starts_with(scheme)) return false;
    const std::string_view rest = std::string_view(origin).substr(scheme.size());
    return rest == host || (host.ends_with(port) && rest == std::string_view(host).substr(0, host.size() - port.size()));
  };
  return same("http://", ":80") || same("https://", ":443");
}

HttpResponse forbidden(std::string message, const char* code) { return to_response({403, std::move(message), "", code}); }

}  // namespace

bool is_loopback(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  if (address == "localhost") return true;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Status check_allowed_host(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '.' || c == '-' || c == '_');
  });
  if (plain && !name.empty()) return Status();
  return invalid("--allowed-hosts " + dump_json(name) + ": a host's name, without scheme and port");
}

PageGuard::PageGuard(const std::string& host, std::vector<std::string> allowed, const Cors& cors)
    : checks_names_(is_loopback(host)), cors_(cors) {
  for (const std::string& name : allowed) allowed_.push_back(lower(name));
}

bool PageGuard::is_own_name(std::string_view host) const {
  std::string name = lower(name_of(host));
  if (name.ends_with('.')) name.pop_back();
  // Docker Desktop's name, in a container, for the machine that it runs on; no public name can be like it.
  const bool local = name == "localhost" || name == "host.docker.internal";
  return host.empty() || local || is_address(name) || is_address(std::string(host)) ||
         std::find(allowed_.begin(), allowed_.end(), name) != allowed_.end();
}

std::optional<HttpResponse> PageGuard::refuse(const HttpRequest& head) const {
  if (checks_names_ && !is_own_name(head.host)) {
    const std::string name = dump_json(std::string(name_of(head.host).substr(0, kShownBytes)));
    return forbidden("The Host header names " + name + ", and this server, which asks for no API key, answers as localhost or by its "
                     "address alone: ask it so, or start it with --allowed-hosts and that name.", "host_not_allowed");
  }
  const Route* route = find_route(head.method, head.path);
  const bool occupies = route != nullptr && route->kind == RouteKind::kOccupies;
  const bool only_reads = !occupies && (head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS");
  // Of one site, but another port, is another origin too.
  const bool from_elsewhere = head.fetch_site == "cross-site" || head.fetch_site == "same-site";
  const bool no_page = head.origin.empty() && !(occupies && from_elsewhere);
  if (only_reads || no_page || is_own_origin(lower(head.origin), lower(head.host)) || cors_.allows(head.origin)) {
    return std::nullopt;
  }
  const std::string origin = dump_json(head.origin.substr(0, kShownBytes));
  const std::string pages = head.origin.empty()     ? "Pages of another origin"
                            : head.origin == "null" ? "Pages without an origin (files, sandboxed frames)"
                                                    : "Pages of " + origin;
  const std::string value = head.origin.empty() ? " and that origin" : head.origin == "null" ? " null" : " " + origin;
  return forbidden(pages + " may not use this server, which asks for no API key: start it with --cors-allow-origin" +
                   value + ", or with --api-key.", "origin_not_allowed");
}

}  // namespace tailrace
