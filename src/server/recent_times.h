// RecentTimes: how long clients waited for tokens in the last minute, for percentiles finer than /metrics' buckets.
#pragma once

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace tailrace {

// Of samples, in seconds; zero without any.
struct Percentiles {
  size_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0;
};

// A bounded ring of samples with the times they came. Thread-safe.
template <size_t kCapacity>
class RecentSamples {
 public:
  // `count` equal samples, of which a ring holds a few at most.
  void add(double seconds, int count = 1) {
    const Sample sample{now_ns(), seconds};
    std::lock_guard lock(mutex_);
    for (int i = 0; i < std::min(count, kMaxEqual); ++i) ring_[total_++ % kCapacity] = sample;
  }

  Percentiles percentiles(int64_t window_ns) const {
    std::vector<double> values;
    values.reserve(kCapacity);
    {
      const int64_t oldest = now_ns() - window_ns;
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < std::min(total_, kCapacity); ++i) {
        if (ring_[i].at_ns >= oldest) values.push_back(ring_[i].seconds);
      }
    }
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const auto at = [&](size_t percent) { return values[(values.size() - 1) * percent / 100]; };
    return {values.size(), at(50), at(90), at(99)};
  }

 private:
  static constexpr int kMaxEqual = 64;
  struct Sample {
    int64_t at_ns = 0;
    double seconds = 0;
  };
  mutable std::mutex mutex_;
  std::array<Sample, kCapacity> ring_;
  size_t total_ = 0;
};

struct RecentTimes {
  static constexpr int64_t kWindowNs = 60'000'000'000;
  RecentSamples<1024> ttft;
  RecentSamples<4096> inter_token;
};

}  // namespace tailrace
