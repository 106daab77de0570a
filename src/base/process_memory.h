// ProcessMemory: what this process takes of the machine's memory, as the system counts it.
#pragma once

#include <cstdint>

namespace tailrace {

// 0 where the system does not say.
struct ProcessMemory {
  int64_t virtual_bytes = 0, resident_bytes = 0;
};

ProcessMemory read_process_memory();

}  // namespace tailrace
