#include "ids/path_proof.h"

#include <algorithm>

namespace tailrace {

bool decoded_together(const std::vector<StepRecord>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const StepRecord& s) { return s.num_decode_rows >= 2; });
}

bool decoded_beside_prompt(const std::vector<StepRecord>& steps) {
  return std::any_of(steps.begin(), steps.end(),
                     [](const StepRecord& s) { return s.num_decode_rows > 0 && s.num_decode_rows < s.num_rows; });
}

// A decode step of more rows than were in the extend steps since the one before has a row that decoded earlier.
bool decode_waited(const std::vector<StepRecord>& steps) {
  bool decoded = false;
  int32_t extended = 0;
  for (const StepRecord& s : steps) {
    if (s.num_decode_rows == 0) {
      extended += s.num_rows;
      continue;
    }
    if (decoded && extended > 0 && s.num_decode_rows > extended) return true;
    decoded = true;
    extended = 0;
  }
  return false;
}

}  // namespace tailrace
