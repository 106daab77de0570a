// Spread: nearest-rank percentiles of a set of numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace tailrace {

class Spread {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  size_t count() const { return values_.size(); }
  // The value that `share` (0..1) of the numbers do not exceed; 0 without numbers.
  double at(double share) {
    if (values_.empty()) return 0;
    std::sort(values_.begin(), values_.end());
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values_.size())));
    return values_[std::clamp<size_t>(rank, 1, values_.size()) - 1];
  }
  double sum() const {
    double total = 0;
    for (double value : values_) total += value;
    return total;
  }
  // "p50 1.0, p99 2.0, max 3.0"
  std::string text() {
    char line[96];
    std::snprintf(line, sizeof line, "p50 %.2f, p99 %.2f, max %.2f", at(0.5), at(0.99), at(1));
    return line;
  }

 private:
  std::vector<double> values_;
};

}  // namespace tailrace
