#include "server/reasoning_seal.h"

#include <cstdint>
#include <utility>

#include "text/detokenizer.h"

namespace tailrace {
namespace {

constexpr std::string_view kPrefix = "tailrace1.";
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string seal_reasoning(std::string_view text) {
  std::string out(kPrefix);
  for (size_t i = 0; i < text.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < text.size() ? static_cast<uint8_t>(text[i + j]) : 0);
    const size_t digits = text.size() - i < 3 ? text.size() - i + 1 : 4;
    for (size_t j = 0; j < 4; ++j) out += j < digits ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::optional<std::string> open_reasoning(std::string_view sealed) {
  if (!sealed.starts_with(kPrefix)) return std::nullopt;
  sealed.remove_prefix(kPrefix.size());
  if (sealed.size() % 4 != 0) return std::nullopt;
  const size_t padding = sealed.ends_with("==") ? 2 : sealed.ends_with('=') ? 1 : 0;
  sealed.remove_suffix(padding);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : sealed) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  std::string text;  // reasoning is well-formed; what a client made up may not be
  Utf8Stream stream;
  stream.push(out, &text);
  stream.finish(&text);
  return text == out ? std::optional<std::string>(std::move(text)) : std::nullopt;
}

}  // namespace tailrace
