// CudaPlugin: the CUDA backend as a shared library that is loaded at run time, so that one binary also starts on
// machines without a driver. No CUDA header is needed on this side.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/call_watch.h"
#include "device/device.h"
#include "device/kernel_trace.h"

namespace tailrace {

class Backend;
struct BackendOptions;
struct TuneShape;
struct TuningTable;

struct CudaDeviceOptions {
  int index = 0;
  bool timed_events = false;  // Stream::record's events carry times (tests): each costs the GPU a time stamp
};

// What the library's one symbol, `tailrace_cuda_plugin`, returns. `abi` comes first in every version of this struct.
struct CudaPlugin {
  uint64_t abi;  // cuda_plugin_abi() of the library
  Expected<std::unique_ptr<Device>> (*create_device)(const CudaDeviceOptions& options);
  // The GPU's name, or why it cannot be used; makes no context.
  Expected<std::string> (*probe)(const CudaDeviceOptions& options);
  // `device` is one of create_device and outlives the backend.
  std::unique_ptr<Backend> (*create_backend)(Device& device, const BackendOptions& options);
  // See CallWatch; kUnavailable where CUPTI cannot be loaded or another tool holds it.
  Expected<std::unique_ptr<CallWatch>> (*watch_calls)();
  // See KernelTrace; before create_device. kUnavailable as watch_calls.
  Expected<std::unique_ptr<KernelTrace>> (*trace_kernels)();
  // See kernels/cuda/attention_tune.h.
  Expected<TuningTable> (*tune)(Device& device, const std::vector<TuneShape>& shapes,
                                const std::function<void(const std::string&)>& print);
};
inline constexpr const char* kCudaPluginFile = "libtailrace_cuda.so";

// Loads the library, beside the executable first, then by the loader's path; once per process, and it stays. `abi` is
// what this binary was compiled with (kernels/cuda_abi.h). Errors: not found, cannot be loaded, of another build.
Expected<const CudaPlugin*> load_cuda_plugin(uint64_t abi);

}  // namespace tailrace
