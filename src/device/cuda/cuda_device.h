// CudaDevice: one NVIDIA GPU as a Device: streams, events and memory by the CUDA runtime. Part of the plugin.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/cuda/claims.h"
#include "device/cuda/cuda_core.h"
#include "device/cuda/step_stamp.h"
#include "device/cuda/upload_ring.h"
#include "device/cuda_plugin.h"
#include "device/device.h"

namespace tailrace::cuda {

class CudaDevice : public Device {
 public:
  // The GPU is there and supported, the clocks are aligned; see create_cuda_device.
  CudaDevice(std::shared_ptr<CudaCore> core, const cudaDeviceProp& properties, size_t free_bytes, cudaStream_t loading);
  ~CudaDevice() override;

  const char* kind() const override { return "cuda"; }
  std::string description() const override;
  size_t memory_bytes() const override { return free_bytes_; }  // free when the device was created

  // Non-blocking streams: the legacy default stream orders nothing here. Stream::run goes through cudaLaunchHostFunc,
  // for tests: its work may not call CUDA.
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  // Claims follow each other in memory while they last in a chunk (1 GiB, or the claim if that is more): two claims in
  // a row, the first a multiple of 256 bytes, are adjacent but where a chunk ends.
  void* alloc_device(size_t bytes, FirstTouch touch) override;
  // Mapped: kernels use the same address.
  void* alloc_pinned(size_t bytes) override;
  // Any thread.
  void upload(void* dst, const void* src, size_t bytes) override;
  double read_gbs() override;
  void set_ready() override;
  DeviceCounters counters() const override;

  // The CUDA stream behind a stream of this device; makes the device current on the calling thread.
  cudaStream_t cuda_stream(Stream& stream) const;
  void make_current() const { core_->make_current(); }
  int sm_count() const { return properties_.multiProcessorCount; }

  // A time of a kernel (%globaltimer) on the host's clock.
  int64_t to_host_ns(int64_t globaltimer_ns) const { return core_->clock.to_host_ns(globaltimer_ns); }

  // The event that is set when the kernels of `launch` have written `stamp`; its time is the stamp's begun_ns or
  // done_ns. Waiting spins on the stamp and aborts with CUDA's error when the device fails. Streams can wait for it
  // too. `stamp` lies in memory of alloc_pinned.
  std::shared_ptr<Event> stamped_event(const StepStamp* stamp, uint64_t launch, bool begun) const {
    return cuda::stamped_event(core_, stamp, launch, begun);
  }

 private:

  std::shared_ptr<CudaCore> core_;
  const cudaDeviceProp properties_;
  const size_t free_bytes_;
  const cudaStream_t loading_;  // zeroes
  UploadRing uploads_;
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::vector<void*> pinned_;
};

// Opens GPU `options.index`. Errors are one line: no driver or one too old, no GPU, no such index, an unsupported GPU.
Expected<std::unique_ptr<Device>> create_cuda_device(const CudaDeviceOptions& options);
// Whether create_cuda_device would find its GPU, without making a context on it. The text describes the GPU.
Expected<std::string> probe_cuda_device(const CudaDeviceOptions& options);

}  // namespace tailrace::cuda
