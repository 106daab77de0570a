// Cors: which web pages of other origins may use the API from a browser, and what their browsers are told.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http_exchange.h"

namespace tailrace {

// Ok for "*" and for an origin as browsers send it: scheme://host[:port], nothing behind it (RFC 6454, 6.2); "null" or
// "file://" for a page without one.
Status check_origin(const std::string& origin);

class Cors {
 public:
  // Empty: no page of another origin may, and no header says anything about it. "*": every page may.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // What every answer to this request says besides its own headers; nothing for requests of no allowed page.
  void add_headers(const HttpRequest& head, HttpHeaders& headers) const;

  // The answer to a browser's question before the real request; none for other requests and for pages that may not.
  // `methods`: what the path takes, e.g. "GET, DELETE".
  std::optional<HttpResponse> preflight(const HttpRequest& head, std::string_view methods) const;

  // False for an empty one.
  bool allows(const std::string& origin) const;

 private:
  const std::vector<std::string> origins_;
};

}  // namespace tailrace
