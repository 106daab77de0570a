// PageGuard: which web pages' requests are refused where no API key tells what a person asks from what a page makes their
// browser ask.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/cors.h"

namespace tailrace {

// Of --host: only this machine reaches it.
bool is_loopback(const std::string& address);

// Ok for a host name: no scheme, port or pattern.
Status check_allowed_host(const std::string& name);

class PageGuard {
 public:
  // `host`: as --host says; `allowed`: names under which the server may be asked besides localhost. `cors` outlives this.
  PageGuard(const std::string& host, std::vector<std::string> allowed, const Cors& cors);

  // 403, or none:
  // - A page of another origin than the server's own (as the Host header names it) and those that Cors allows changes nothing and
  //   computes nothing: only GET, HEAD and OPTIONS, but of routes that a request occupies. Browsers send such requests
  //   without asking first, and name the page in Origin; for an image's address they only say, in Sec-Fetch-Site, that it
  //   is another's.
  // - A server that listens on a loopback address is asked as localhost, by an address, or by an allowed name: a name of somebody
  //   else's that leads here makes their page one of the server's own origin.
  std::optional<HttpResponse> refuse(const HttpRequest& head) const;

 private:
  bool is_own_name(std::string_view host) const;

  const bool checks_names_;
  std::vector<std::string> allowed_;  // in lower case
  const Cors& cors_;
};

}  // namespace tailrace
