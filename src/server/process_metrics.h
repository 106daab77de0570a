// What the operating system knows of this process, under the names that Prometheus's own clients use.
#pragma once

#include <cstdint>

namespace tailrace {

struct ProcessMetrics {
  int64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_seconds = 0;    // of user and system
  double start_time_s = 0;   // Unix time
  int64_t open_fds = 0;
};

// Reads /proc; what cannot be read stays 0.
ProcessMetrics read_process_metrics();

}  // namespace tailrace
