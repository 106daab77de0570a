// UploadRing: copies pageable host memory to the device through pinned pieces, side by side for several threads.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>
#include <vector>

namespace tailrace::cuda {

// The driver's own staging of pageable memory serves one thread at a time. The device is current wherever this is
// called.
class UploadRing {
 public:
  UploadRing() = default;
  UploadRing(const UploadRing&) = delete;

  // Copies before the call returns. Any thread; each that is in here at once has 8 MiB pinned of its own.
  void upload(void* dst, const void* src, size_t bytes);
  // Gives the pinned memory back; nobody is uploading.
  void clear();

 private:
  struct Place {
    std::byte* memory = nullptr;  // two pieces
    cudaStream_t stream = nullptr;
    cudaEvent_t copied[2] = {};
  };
  Place take();

  std::mutex mutex_;
  std::vector<Place> idle_;
};

}  // namespace tailrace::cuda
