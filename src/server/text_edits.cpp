#include "server/text_edits.h"

#include <algorithm>
#include <utility>

namespace tailrace {

void TextEdits::replace(size_t begin, size_t end, std::string text) {
  const auto before = [](const auto& key, const Edit& edit) { return key < std::pair(edit.begin, edit.end); };
  const auto place = std::upper_bound(edits_.begin(), edits_.end(), std::pair(begin, end), before);
  edits_.insert(place, Edit{begin, end, std::move(text)});
}

std::string TextEdits::apply() const {
  std::string out;
  size_t at = 0;
  for (const Edit& edit : edits_) {
    out.append(text_.substr(at, edit.begin - at)).append(edit.text);
    at = edit.end;
  }
  return out.append(text_.substr(at));
}

std::string line_break_of(std::string_view text) {
  const size_t end = text.find('\n');
  return end != std::string_view::npos && end > 0 && text[end - 1] == '\r' ? "\r\n" : "\n";
}

size_t byte_order_mark(std::string_view text) { return text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0; }

}  // namespace tailrace
