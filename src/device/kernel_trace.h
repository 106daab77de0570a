// KernelTrace: when each kernel of a GPU ran, as its driver tells: where a step's time goes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tailrace {

struct KernelRun {
  std::string name;             // of the function, without namespaces and arguments
  int64_t begin_ns = 0, end_ns = 0;
  uint64_t launch = 0;          // the host's launch that it belongs to: all kernels of a captured graph share one
  uint64_t node = 0;            // order among the kernels of a launch, as they were queued
  uint32_t graph = 0;           // which captured graph; 0: none
};

class KernelTrace {
 public:
  virtual ~KernelTrace() = default;
  // Forgets what ran before.
  virtual void begin() = 0;
  // What ran since begin() and has ended, in no order.
  virtual std::vector<KernelRun> end() = 0;
};

}  // namespace tailrace
