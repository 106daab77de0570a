#include "base/process_memory.h"

#include <unistd.h>

#include <fstream>

namespace tailrace {

ProcessMemory read_process_memory() {
  int64_t total = 0, resident = 0;
  if (!(std::ifstream("/proc/self/statm") >> total >> resident)) return {};
  return {.virtual_bytes = total * sysconf(_SC_PAGESIZE), .resident_bytes = resident * sysconf(_SC_PAGESIZE)};
}

}  // namespace tailrace
