// launch_overlapped: a kernel launch that may begin while the kernel before it on the stream ends.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/gpu_code.h"

namespace tailrace::cuda {

// The kernel must wait (ptx::wait_for_previous_kernel) before it reads or writes what kernels before it write or read. Where the
// GPU's code has no such launch it is an ordinary one.
template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                              Args... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = code_may_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace tailrace::cuda
