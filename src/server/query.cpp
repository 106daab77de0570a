#include "server/query.h"

#include <algorithm>
#include <charconv>

namespace tailrace {
namespace {

// As forms are encoded: a blank may be a '+'.
std::string decoded(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), '+', ' ');
  return percent_decoded(out);
}

bool lists(std::string_view known, std::string_view name) {
  while (!known.empty()) {
    const std::string_view word = known.substr(0, known.find(' '));
    if (word == name) return true;
    known.remove_prefix(std::min(known.size(), word.size() + 1));
  }
  return false;
}

std::string with_commas(std::string_view names) {
  std::string out;
  for (const char c : names) out += c == ' ' ? std::string(", ") : std::string(1, c);
  return out;
}

}  // namespace

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size();
    if (escape && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Query::Query(std::string_view text) {
  while (!text.empty()) {
    const std::string_view member = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), member.size() + 1));
    if (member.empty()) continue;
    const size_t equals = std::min(member.find('='), member.size());
    members_.emplace_back(decoded(member.substr(0, equals)),
                          decoded(member.substr(std::min(equals + 1, member.size()))));
  }
}

std::optional<std::string> Query::find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const auto& m) { return m.first == name; });
  return found == members_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> Query::all(std::string_view name) const {
  std::vector<std::string> out;
  for (const auto& [member, value] : members_) {
    if (member == name) out.push_back(value);
  }
  return out;
}

std::optional<ApiError> Query::fault(std::string_view known, const std::string& what) const {
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    const std::string& name = member->first;
    const std::string shown = name.substr(0, 100);
    if (!lists(known, name)) {
      const std::string some = known.empty() ? "no query parameters" : "the query parameters " + with_commas(known);
      return ApiError{400, what + " takes " + some + ", not '" + shown + "'.", shown, "unknown_parameter"};
    }
    const auto first = std::find_if(members_.begin(), member, [&](const auto& m) { return m.first == name; });
    if (first == member || name.ends_with("[]")) continue;
    return ApiError{400, "The query parameter " + shown + " is given twice.", shown, "invalid_value"};
  }
  return std::nullopt;
}

}  // namespace tailrace
