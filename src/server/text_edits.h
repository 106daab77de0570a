// Changes of a text by their places in it, made all at once.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

class TextEdits {
 public:
  explicit TextEdits(std::string_view text) : text_(text) {}

  // The bytes [begin, end) become `text`. Edits may touch, but not overlap.
  void replace(size_t begin, size_t end, std::string text);
  // Before the byte at `place`; behind what was inserted there before, ahead of what replaces it.
  void insert(size_t place, std::string text) { replace(place, place, std::move(text)); }

  std::string apply() const;

 private:
  struct Edit {
    size_t begin, end;
    std::string text;
  };
  const std::string_view text_;
  std::vector<Edit> edits_;
};

// How the text breaks its lines, by the first that it breaks: "\r\n" or "\n".
std::string line_break_of(std::string_view text);

// The length of a byte order mark at its beginning, or 0.
size_t byte_order_mark(std::string_view text);

}  // namespace tailrace
