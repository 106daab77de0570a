// measure: how long a piece of work takes, on a machine that others may use too.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace tailrace::bench {

inline double g_seconds = 0.3;      // per figure
inline bool g_own_time = false;     // one thread: its CPU time, which other processes do not add to

inline int64_t time_ns() {
  if (!g_own_time) return now_ns();
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

struct Times {
  double median_us, best_us;
};

// Of `body`, repeated for g_seconds. The best is what the code can do; the median tells how quiet the machine was.
template <typename F>
Times measure(const F& body) {
  body();
  std::vector<double> times;
  const int64_t end = now_ns() + static_cast<int64_t>(g_seconds * 1e9);
  do {
    const int64_t start = time_ns();
    body();
    times.push_back(static_cast<double>(time_ns() - start) / 1e3);
  } while (now_ns() < end || times.size() < 5);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

}  // namespace tailrace::bench
