// Device: streams, events and memory. The only place that may synchronise. Work on a stream runs in order, after the
// call that queued it has returned; an Event is set when the stream reaches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace tailrace {

class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  // Blocks the host until the event is set. `site` names the caller in tailrace_host_block_total.
  virtual void wait(const char* site) = 0;
  // Device time at which the stream reached the event, ns on the device's clock; valid when done().
  virtual int64_t device_ns() const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Queues host code in stream order (the CPU device's kernels; on CUDA only for tests).
  virtual void run(std::function<void()> work) = 0;
  // Queues a copy; both sides must stay valid until the stream has passed it. Never blocks: pageable host memory is
  // refused by CHECK.
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  // Copies pageable host memory in stream order and keeps the host until the stream is dry: what --debug-staging
  // blocking shows the price of. Always a host block of `site`.
  virtual void copy_blocking(void* dst, const void* src, size_t bytes, const char* site) = 0;
  // A fresh event per call: an event that is re-recorded for a later step deadlocks its waiters.
  virtual std::shared_ptr<Event> record() = 0;
  // Work queued after this waits for `event` on the device; the host goes on.
  virtual void wait_for(const std::shared_ptr<Event>& event) = 0;
};

// Memory counters of contracts 1 and 2.
struct DeviceCounters {
  uint64_t host_blocks = 0;         // waits that were not allowed (see Device::set_ready)
  uint64_t allocs_after_ready = 0;
  size_t device_bytes = 0, pinned_bytes = 0;
};

// When memory is first written, which on a CPU is when the system finds its pages: a pool that fills while requests are
// served takes small ones, since a huge page's first touch can last as long as a step.
enum class FirstTouch { kAtBoot, kWhileServing };

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* kind() const = 0;   // "cpu", "cuda"
  virtual std::string description() const = 0;
  virtual size_t memory_bytes() const = 0;  // total that may be claimed
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  // Zeroed memory, aligned to 256 bytes, owned by the device until it is destroyed. Null when there is not enough.
  virtual void* alloc_device(size_t bytes, FirstTouch touch = FirstTouch::kAtBoot) = 0;
  virtual void* alloc_pinned(size_t bytes) = 0;
  // Copies host memory into device memory before the call returns: loading only.
  virtual void upload(void* dst, const void* src, size_t bytes) = 0;
  // GB/s of a large read of device memory, measured now; 0 where this device does not measure it. Benchmarks only, while
  // nothing else runs.
  virtual double read_gbs() { return 0; }
  // Everything is claimed: later allocations and blocking waits other than "step_result" are counted.
  virtual void set_ready() = 0;
  virtual DeviceCounters counters() const = 0;
};

struct CpuDeviceOptions {
  // Production: one worker serves all streams. Tests: every stream has its own worker that sleeps a seeded random time
  // before each piece of work, so that missing ordering shows.
  bool thread_per_stream = false;
  uint64_t delay_seed = 0;    // 0: no delays
  int max_delay_us = 0;
  size_t memory_bytes = 0;    // 0: what the machine has available
};
std::unique_ptr<Device> create_cpu_device(const CpuDeviceOptions& options);

}  // namespace tailrace
