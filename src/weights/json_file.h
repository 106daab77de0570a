// Reads small JSON files that lie beside weights, with a bound on their size and nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace tailrace {

inline constexpr size_t kMaxJsonFileBytes = 100'000'000;

// Parses a file whose content must be a JSON object. kNotFound when there is no such file; kDataLoss, naming the file,
// when it is too large, nested deeper than 64 levels, or not an object.
Expected<nlohmann::json> read_json_file(const std::string& path);

}  // namespace tailrace
