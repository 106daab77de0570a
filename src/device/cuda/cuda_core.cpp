#include "device/cuda/cuda_core.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"

namespace tailrace::cuda {
namespace {

constexpr int kPooledEvents = 64;
constexpr unsigned kWaitGreaterOrEqual = 0;  // CU_STREAM_WAIT_VALUE_GEQ

}  // namespace

void cuda_failed(const char* file, int line, const char* what, cudaError_t error) {
  std::fprintf(stderr, "%s:%d: CUDA failed: %s (%s): %s\n", file, line, cudaGetErrorString(error),
               cudaGetErrorName(error), what);
  std::fflush(stderr);
  std::abort();
}

CudaCore::~CudaCore() {
  for (cudaEvent_t event : all_events_) cudaEventDestroy(event);
  if (base_event_) cudaEventDestroy(base_event_);
}

cudaError_t CudaCore::start(cudaStream_t stream) {
  // The driver's own call: the runtime has none that lets a stream wait for a word in memory.
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &entry, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorCallRequiresNewerDriver;
  wait_value_ = reinterpret_cast<WaitValue>(entry);

  if ((error = clock.align(stream)) != cudaSuccess) return error;
  if (timed_) {
    if ((error = cudaEventCreate(&base_event_)) != cudaSuccess) return error;
    if ((error = cudaEventRecord(base_event_, stream)) != cudaSuccess) return error;
    while ((error = cudaEventQuery(base_event_)) == cudaErrorNotReady) {
    }
    if (error != cudaSuccess) return error;
    base_ns_ = now_ns();
  }
  free_events_.reserve(kPooledEvents);
  for (int i = 0; i < kPooledEvents; ++i) {
    cudaEvent_t event = nullptr;
    error = cudaEventCreateWithFlags(&event, timed_ ? cudaEventDefault : cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
    all_events_.push_back(event);
    free_events_.push_back(event);
  }
  return cudaSuccess;
}

void CudaCore::make_current() const {
  thread_local int current = -1;
  if (current == index_) return;
  CUDA_CHECK(cudaSetDevice(index_));
  current = index_;
}

cudaEvent_t CudaCore::take_event() {
  std::lock_guard lock(mutex_);
  if (free_events_.empty()) {
    count_allocation();
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, timed_ ? cudaEventDefault : cudaEventDisableTiming));
    all_events_.push_back(event);
    free_events_.reserve(all_events_.size());
    return event;
  }
  cudaEvent_t event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void CudaCore::give_event(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

int64_t CudaCore::event_ns(cudaEvent_t event) const {
  CHECK_MSG(timed_, "this device's events carry no times (CudaDeviceOptions::timed_events)");
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, base_event_, event));
  return base_ns_ + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
}

void CudaCore::add_stream(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void CudaCore::remove_stream(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
}

bool CudaCore::check_healthy() const {
  std::lock_guard lock(mutex_);
  bool dry = true;
  for (cudaStream_t stream : streams_) {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaErrorNotReady) {
      dry = false;
    } else if (error != cudaSuccess) {
      cuda_failed(__FILE__, __LINE__, "waiting for a step", error);
    }
  }
  return dry;
}

void CudaCore::add_range(const void* base, size_t bytes) {
  std::lock_guard lock(mutex_);
  ranges_.emplace_back(reinterpret_cast<uintptr_t>(base), bytes);
}

bool CudaCore::owns(const void* p, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(p);
  std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) {
    return address >= range.first && address + bytes <= range.first + range.second;
  });
}

void CudaCore::wait_for_word(cudaStream_t stream, const volatile uint64_t* word, uint64_t value) const {
  const int error = wait_value_(stream, reinterpret_cast<uintptr_t>(word), value, kWaitGreaterOrEqual);
  CHECK_MSG(error == 0, "cuStreamWaitValue64 failed");
}

void CudaCore::count_wait(const char* site) {
  if (ready.load(std::memory_order_relaxed) && std::strcmp(site, "step_result") != 0) host_blocks++;
}

}  // namespace tailrace::cuda
