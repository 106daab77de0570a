// The plugin's one symbol: what the binary gets to see of the CUDA backend.
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver_watch.h"
#include "device/cuda/kernel_activity.h"
#include "kernels/cuda/attention_tune.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda_abi.h"

namespace tailrace::cuda {
namespace {

const CudaPlugin kPlugin{.abi = cuda_plugin_abi(),
                         .create_device = create_cuda_device,
                         .probe = probe_cuda_device,
                         .create_backend = create_cuda_backend,
                         .watch_calls = watch_driver_calls,
                         .trace_kernels = trace_kernels,
                         .tune = tune_attention};

}  // namespace
}  // namespace tailrace::cuda

extern "C" __attribute__((visibility("default"))) const tailrace::CudaPlugin* tailrace_cuda_plugin() {
  return &tailrace::cuda::kPlugin;
}
