// GpuClock: places the GPU's %globaltimer on the host's clock (base/clock.h).
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace tailrace::cuda {

class GpuClock {
 public:
  // Asks a waiting kernel for its time, many times, over mapped memory: the shortest round trip bounds the error, under
  // a microsecond. Blocks for about a millisecond. cudaErrorTimeout when the kernel does not answer.
  cudaError_t align(cudaStream_t stream);

  int64_t to_host_ns(int64_t globaltimer_ns) const {
    return globaltimer_ns + offset_ns_.load(std::memory_order_relaxed);
  }

  // One thread: the host saw at `seen_ns`, by spinning, what the GPU stamped at `globaltimer_ns`. Nothing is seen
  // before it happens, and among many the quickest is seen at once: that keeps the clocks together while they drift
  // apart.
  void observe(int64_t globaltimer_ns, int64_t seen_ns);

 private:
  static constexpr int kWindow = 1024;        // observations between two corrections
  static constexpr int64_t kSeenAfter = 700;  // ns from a stamp to a spinning reader over PCIe

  std::atomic<int64_t> offset_ns_{0};
  int64_t least_lag_ns_ = INT64_MAX;
  int observed_ = 0;
};

}  // namespace tailrace::cuda
