#include "output/marker_lexer.h"

#include <algorithm>
#include <utility>

namespace tailrace {
namespace {

void add_text(std::string_view text, std::vector<MarkerLexer::Piece>* out) {
  if (!text.empty()) out->push_back({-1, std::string(text)});
}

}  // namespace

MarkerLexer::MarkerLexer(std::vector<std::string> spellings, const Tokenizer& tokenizer)
    : spellings_(std::move(spellings)) {
  for (const std::string& spelling : spellings_) {
    const auto id = tokenizer.token_to_id(spelling);
    ids_.push_back(id && tokenizer.is_special(*id) ? *id : -1);
  }
}

int MarkerLexer::marker_of(TokenId id) const {
  const auto it = id < 0 ? ids_.end() : std::find(ids_.begin(), ids_.end(), id);
  return it == ids_.end() ? -1 : static_cast<int>(it - ids_.begin());
}

void MarkerLexer::control(TokenId id, std::vector<Piece>* out) {
  finish(out);
  out->push_back({marker_of(id), ""});
}

void MarkerLexer::text(std::string_view text, std::vector<Piece>* out) {
  const std::string joined = std::exchange(held_, {}) + std::string(text);
  const std::string_view rest = joined;
  size_t begin = 0;  // of the text not yet given out
  for (size_t at = 0; at < rest.size();) {
    int found = -1;
    for (size_t m = 0; m < spellings_.size(); ++m) {
      if (ids_[m] >= 0 || spellings_[m][0] != rest[at]) continue;
      const std::string_view here = rest.substr(at, spellings_[m].size());
      if (spellings_[m].compare(0, here.size(), here) != 0) continue;
      if (here.size() < spellings_[m].size()) {  // the stream goes on, and may complete it
        add_text(rest.substr(begin, at - begin), out);
        held_ = rest.substr(at);
        return;
      }
      found = static_cast<int>(m);
    }
    if (found < 0) {
      ++at;
      continue;
    }
    add_text(rest.substr(begin, at - begin), out);
    out->push_back({found, spellings_[static_cast<size_t>(found)]});
    at += spellings_[static_cast<size_t>(found)].size();
    begin = at;
  }
  add_text(rest.substr(begin), out);
}

void MarkerLexer::finish(std::vector<Piece>* out) { add_text(std::exchange(held_, {}), out); }

}  // namespace tailrace
