// The API key check, in constant time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace {

// True when no key is configured, or `authorization` is "Bearer <key>", the scheme in any case (RFC 9110, 11.1). The time taken depends on the lengths only, not
// on where the texts differ.
inline bool authorized(const std::string& api_key, std::string_view authorization) {
  if (api_key.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  const auto is = [](char want, char got) { return want == (got >= 'A' && got <= 'Z' ? got - 'A' + 'a' : got); };
  const bool scheme = authorization.size() >= kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), is);
  const std::string_view given = scheme ? authorization.substr(kScheme.size()) : std::string_view();
  volatile unsigned char difference = given.size() == api_key.size() ? 0 : 1;
  for (size_t i = 0; i < api_key.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference = difference | static_cast<unsigned char>(api_key[i] ^ other);
  }
  return difference == 0;
}

}  // namespace tailrace
