// JSON as the server reads it from clients: bounded in depth, size and memory, UTF-8 checked, no duplicate keys.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tailrace {

using Json = nlohmann::ordered_json;  // keeps the order of keys: it must survive to the prompt

struct JsonLimits {
  int max_depth = 64;
  size_t max_values = size_t{1} << 21;      // of all kinds, keys included
  size_t max_members = size_t{1} << 16;     // of one object
  // Asked while the document grows, for its estimated size so far: many times the text's where values are short. An
  // error ends the parsing with its code and message.
  std::function<Status(size_t document_bytes)> take_memory;
};

struct JsonError {
  std::string message;
  std::string top_level_key;  // the member of the outermost object that was being read; "" outside of one
  StatusCode code = StatusCode::kInvalidArgument;  // or take_memory's
};

// Strict RFC 8259 (no NaN, no comments, no trailing text). Numbers that do not fit a double (1e999), ill-formed UTF-8, lone
// surrogates and duplicate keys are errors.
tl::expected<Json, JsonError> parse_json(std::string_view text, const JsonLimits& limits = {});

// Roughly the bytes of `json` as text, without making it.
size_t text_bytes(const Json& json);

// Compact, on one line; ill-formed UTF-8 inside strings is replaced by U+FFFD instead of failing.
std::string dump_json(const Json& json);

}  // namespace tailrace
