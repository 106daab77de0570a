// The API key check, in constant time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace {

// True when no key is configured, or `authorization` is "Bearer <key>". The time taken depends on the lengths only, not
// on where the texts differ.
inline bool authorized(const std::string& api_key, std::string_view authorization) {
  if (api_key.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const bool scheme = authorization.substr(0, kScheme.size()) == kScheme;
  const std::string_view given = scheme ? authorization.substr(kScheme.size()) : std::string_view();
  volatile unsigned char difference = given.size() == api_key.size() ? 0 : 1;
  for (size_t i = 0; i < api_key.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference = difference | static_cast<unsigned char>(api_key[i] ^ other);
  }
  return difference == 0;
}

}  // namespace tailrace
