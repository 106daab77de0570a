// Query: the parameters behind a request's '?', decoded.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace tailrace {

// `text` with each "%41" as the byte that it means; an ill-formed escape stays as it stands.
std::string percent_decoded(std::string_view text);

class Query {
 public:
  // `text`: as it was sent. "%41" and "+" are decoded, in names too; an ill-formed escape stays as it stands. A name
  // without '=' has the value "".
  explicit Query(std::string_view text);

  // None where it was not sent.
  std::optional<std::string> find(std::string_view name) const;
  std::vector<std::string> all(std::string_view name) const;
  // The first of them that `known` (names, parted by blanks) does not list, or that was sent twice, but for lists
  // ("include[]"): 400 that names it.
  // `what`: who takes them, "GET /path".
  std::optional<ApiError> fault(std::string_view known, const std::string& what) const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

}  // namespace tailrace
