// Stop strings over a stream of text: nothing of a stop string leaves before it is certain that none is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

// The match that counts is the one that completes first in the text (of those, the longest), wherever the pieces are cut;
// the stop string itself is not part of the text. Costs O(bytes x stop strings). Not thread-safe; one per sequence.
class StopMatcher {
 public:
  // Empty strings are ignored; no strings at all: everything passes.
  explicit StopMatcher(std::vector<std::string> stops);

  // Returns the text that may be sent now: all but the longest suffix that is a proper prefix of a stop string.
  // Once matched() nothing more comes out.
  std::string push(std::string_view text);
  // The text is over without a match: what was held back.
  std::string finish();

  bool matched() const { return matched_ >= 0; }
  // The stop string that ended the text; only when matched().
  const std::string& matched_stop() const { return stops_[static_cast<size_t>(matched_)].text; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> fail;  // KMP: length of the longest proper border of each prefix
    uint32_t state = 0;          // bytes of `text` that the input so far ends with
  };

  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace tailrace
