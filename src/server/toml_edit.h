// Sets a few members of a TOML file in its text, so that all the rest, comments included, stays as
// it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tailrace {

// `value` as TOML spells it.
struct TomlMember {
  std::string key, value;
};

// Text between quotes, escaped.
std::string toml_string(std::string_view text);

// `text` with `top` at its top level and `members` in the table `table` (one key a part); members
// that are there get another value, the others are added. kInvalidArgument, naming the line: text
// that this does not understand, and a table that is written in another way than under a header of
// its own.
Expected<std::string> set_in_toml(std::string_view text, const std::vector<TomlMember>& top,
                                  const std::vector<std::string>& table,
                                  const std::vector<TomlMember>& members);

}  // namespace tailrace
