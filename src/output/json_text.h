// Pieces of JSON that parsers write by hand, to be read by a JsonStream.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// `text` as the inside of a JSON string; control characters are left to JsonStream.
inline std::string json_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

inline std::string json_quoted(std::string_view text) { return '"' + json_escaped(text) + '"'; }

// `text` itself where it is one JSON value (white space around it allowed), else as a string: what a family that writes
// values without quotes means by it.
std::string json_value_or_string(std::string_view text);

}  // namespace tailrace
