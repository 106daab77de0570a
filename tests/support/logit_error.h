// How far logits are from the expected ones, in units of the expected ones' spread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace tailrace {

// The standard deviation.
inline double spread(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (float v : values) sum += v, squares += double{v} * v;
  const double mean = sum / static_cast<double>(values.size());
  return std::sqrt(squares / static_cast<double>(values.size()) - mean * mean);
}

struct LogitError {
  double max = 0, sum = 0;
  int64_t count = 0;
  std::vector<std::pair<double, double>> rows;  // largest and mean of each

  void add(const float* expected, const std::vector<float>& got, double unit) {
    double row_max = 0, row_sum = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(double{got[i]} - expected[i]) / unit;
      row_max = std::isfinite(error) ? std::max(row_max, error) : 1e9;
      row_sum += error;
    }
    rows.emplace_back(row_max, row_sum / static_cast<double>(got.size()));
    max = std::max(max, row_max);
    sum += row_sum;
    count += static_cast<int64_t>(got.size());
  }
  double mean() const { return sum / static_cast<double>(count); }
};

}  // namespace tailrace
