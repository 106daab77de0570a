// Monotonic time in nanoseconds, as one plain number.
#pragma once

#include <chrono>
#include <cstdint>

namespace tailrace {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tailrace
