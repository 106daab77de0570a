#include "text/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace tailrace {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.fail.assign(text.size() + 1, 0);
    uint32_t border = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = stop.fail[border];
      if (text[i] == text[border]) ++border;
      stop.fail[i + 1] = border;
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (matched()) return {};
  if (stops_.empty()) return std::string(text);
  const size_t held_before = held_.size();
  held_.append(text);
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      while (stop.state > 0 && stop.text[stop.state] != text[i]) stop.state = stop.fail[stop.state];
      if (stop.text[stop.state] == text[i]) ++stop.state;
      if (stop.state < stop.text.size()) continue;
      if (!matched() || stop.text.size() > matched_stop().size()) matched_ = static_cast<int>(s);
    }
    if (matched()) {
      held_.resize(held_before + i + 1 - matched_stop().size());
      return std::move(held_);
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.state);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() {
  if (matched()) return {};
  return std::move(held_);
}

}  // namespace tailrace
