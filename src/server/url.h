// Where a server is, as users write it: http://host:port.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tailrace {

struct Url {
  bool secure = false;  // https
  std::string host;     // an IPv6 address without its brackets
  std::string port;     // "": none was said
  std::string path;     // "" or "/a/b"; never ends in '/'
};

// http://HOST[:PORT][/PATH], or the same with https. kInvalidArgument, saying what is wrong with it,
// for anything else: user names, queries and fragments too, and a path that ends in /v1, where the
// API's own paths begin.
Expected<Url> parse_url(std::string_view text);

// The same address in its shortest form, without a '/' at its end.
std::string to_string(const Url& url);

// host or [host], with the port where there is one.
std::string authority_of(const std::string& host, const std::string& port);

}  // namespace tailrace
