// Sets a few members of a JSON file in its text, so that all the rest stays as it is.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/json.h"

namespace tailrace {

enum class JsonDialect {
  kStrict,
  kCommented,  // as editors write it: // and /* */ comments, commas before a closing bracket
};

// `text` ("" for none) with the members of `wanted` in it: where both have an object its members are
// set in turn, any other value that differs is replaced, what is not there is added behind the rest.
// kInvalidArgument: text that is no JSON object, or that has something else where `wanted` has an
// object.
Expected<std::string> set_in_json(std::string_view text, const Json& wanted, JsonDialect dialect);

}  // namespace tailrace
