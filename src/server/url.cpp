#include "server/url.h"

#include <algorithm>

namespace tailrace {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
constexpr int kMaxPort = 65535;

// Letters and digits, and what else `more` has.
bool made_of(std::string_view text, std::string_view more) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return kLetters.find(c) != std::string_view::npos || more.find(c) != std::string_view::npos;
  });
}

bool is_port(std::string_view text) {
  if (text.empty() || text.size() > 5) return false;
  int port = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    port = port * 10 + (c - '0');
  }
  return port >= 1 && port <= kMaxPort;
}

// host[:port] or [address][:port]
Status take_authority(std::string_view text, Url& out) {
  std::string_view host = text, port;
  const bool bracket = !text.empty() && text.front() == '[';
  size_t colon = text.find(':');
  if (bracket) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return invalid("a '[' without its ']'");
    host = text.substr(1, end - 1);
    if (!made_of(host, ":.") || host.find(':') == std::string_view::npos)
      return invalid("no IPv6 address between the brackets");
    colon = end + 1 < text.size() ? end + 1 : std::string_view::npos;
    if (colon != std::string_view::npos && text[colon] != ':') return invalid("something stands behind the ']'");
  } else {
    host = text.substr(0, colon);
    if (host.empty()) return invalid("it names no host");
    if (!made_of(host, ".-_")) return invalid("a host has letters, digits, '.', '-' and '_'");
  }
  if (colon != std::string_view::npos) {
    port = text.substr(colon + 1);
    if (!is_port(port)) return invalid("a port is a number from 1 to 65535");
  }
  out.host = host;
  out.port = port;
  return Status();
}

}  // namespace

Expected<Url> parse_url(std::string_view text) {
  Url out;
  const std::string_view scheme = text.substr(0, text.find("://"));
  if (scheme.size() == text.size() || (scheme != "http" && scheme != "https"))
    return fail(invalid("it does not begin with http:// or https://"));
  out.secure = scheme == "https";
  std::string_view rest = text.substr(scheme.size() + 3);
  if (rest.find('@') != std::string_view::npos) return fail(invalid("it holds a user name: keys go into --api-key"));
  if (rest.find_first_of("?#") != std::string_view::npos) return fail(invalid("it holds a query or a fragment"));
  while (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (Status status = take_authority(rest.substr(0, slash), out); !status.ok()) return fail(status);
  out.path = rest.substr(slash);
  if (!made_of(out.path, "/-._~%!$&'()*+,;=:"))
    return fail(invalid("its path holds a character that has to be escaped"));
  if (out.path.size() >= 3 && out.path.compare(out.path.size() - 3, 3, "/v1") == 0)
    return fail(invalid("leave out /v1, which is put behind it"));
  return out;
}

std::string authority_of(const std::string& host, const std::string& port) {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port.empty() ? name : name + ":" + port;
}

std::string to_string(const Url& url) {
  return (url.secure ? "https://" : "http://") + authority_of(url.host, url.port) + url.path;
}

}  // namespace tailrace
