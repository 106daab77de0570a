// Wall-clock time since 1970, as answers and logs say it.
#pragma once

#include <chrono>
#include <cstdint>

namespace tailrace {

inline int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}
inline int64_t unix_seconds() { return unix_ms() / 1000; }

}  // namespace tailrace
