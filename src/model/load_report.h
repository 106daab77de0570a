// LoadReport: what reading a checkpoint cost.
#pragma once

#include <cstddef>
#include <string>

namespace tailrace {

struct LoadReport {
  size_t bytes = 0;          // read of the checkpoint's tensors; 0: nothing was read (dummy weights)
  double seconds = 0;        // until the last lay packed in the device's memory
  size_t peak_resident = 0;  // of the process meanwhile, as seen at the end of each piece of work; 0: the system does not say
};

// "13.76 GB in 7.9 s, 1.74 GB/s, at most 1.2 GB resident"; "" where nothing was read.
std::string format_load(const LoadReport& report);

}  // namespace tailrace
