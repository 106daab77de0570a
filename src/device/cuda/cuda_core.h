// CudaCore: what a CUDA device shares with its streams and events: checked calls, counters, ranges, pooled events.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/gpu_clock.h"
#include "device/cuda/step_stamp.h"
#include "device/device.h"

namespace tailrace::cuda {

// A CUDA call that fails after boot is our bug or the GPU's death: prints the text and aborts.
[[noreturn]] void cuda_failed(const char* file, int line, const char* what, cudaError_t error);
#define CUDA_CHECK(call)                                                          \
  do {                                                                            \
    const cudaError_t cuda_check_error = (call);                                  \
    if (__builtin_expect(cuda_check_error != cudaSuccess, 0)) {                   \
      ::tailrace::cuda::cuda_failed(__FILE__, __LINE__, #call, cuda_check_error); \
    }                                                                             \
  } while (0)

class CudaCore {
 public:
  // The device `index` is current and supported. timed: pooled events carry times.
  CudaCore(int index, bool timed) : index_(index), timed_(timed) {}
  ~CudaCore();
  CudaCore(const CudaCore&) = delete;

  // Aligns the clocks and fills the pool.
  cudaError_t start(cudaStream_t stream);

  // CUDA's current device is the calling thread's; costs nothing when it is right already.
  void make_current() const;

  // Pooled events. The pool grows when all are in use: an allocation.
  cudaEvent_t take_event();
  void give_event(cudaEvent_t event);
  // Host time of a timed event that is done, to a few microseconds.
  int64_t event_ns(cudaEvent_t event) const;

  // Streams, for the health check.
  void add_stream(cudaStream_t stream);
  void remove_stream(cudaStream_t stream);
  // Aborts with the CUDA error's text when the device has failed. True when every stream has run dry.
  bool check_healthy() const;

  // Memory that this device handed out: a copy may touch nothing else.
  void add_range(const void* base, size_t bytes);
  bool owns(const void* p, size_t bytes) const;

  // `stream` goes on when *word >= value, a word of mapped memory.
  void wait_for_word(cudaStream_t stream, const volatile uint64_t* word, uint64_t value) const;

  void count_wait(const char* site);
  void count_allocation() { allocs_after_ready += ready ? 1 : 0; }

  std::atomic<bool> ready{false};
  std::atomic<uint64_t> host_blocks{0}, allocs_after_ready{0};
  std::atomic<size_t> device_bytes{0}, pinned_bytes{0};
  GpuClock clock;

 private:
  using WaitValue = int (*)(cudaStream_t, unsigned long long, uint64_t, unsigned int);

  const int index_;
  const bool timed_;
  WaitValue wait_value_ = nullptr;
  cudaEvent_t base_event_ = nullptr;  // timed only: recorded at base_ns_
  int64_t base_ns_ = 0;
  mutable std::mutex mutex_;
  std::vector<cudaEvent_t> free_events_, all_events_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::pair<uintptr_t, size_t>> ranges_;
};

// An event that streams can wait for on the device.
class CudaWaitable : public Event {
 public:
  virtual void enqueue_wait(cudaStream_t stream) const = 0;
};

// Records a pooled event on `stream` now.
std::shared_ptr<Event> record_event(const std::shared_ptr<CudaCore>& core, cudaStream_t stream);
// See CudaDevice::stamped_event.
std::shared_ptr<Event> stamped_event(const std::shared_ptr<CudaCore>& core, const StepStamp* stamp, uint64_t launch,
                                     bool begun);

}  // namespace tailrace::cuda
