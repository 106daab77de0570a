// The API's own description, docs/openapi.json, as GET /openapi.json serves it.
#pragma once

#include <string_view>

namespace tailrace {

std::string_view openapi_text();

}  // namespace tailrace
