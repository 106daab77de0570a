// launch_overlapped: a kernel launch that may begin while the kernel before it on the stream ends; launch_clustered: the same with
// CTAs in clusters.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/gpu_code.h"

namespace tailrace::cuda {

// The kernel must wait (ptx::wait_for_previous_kernel) before it reads or writes what kernels before it write or read. Where the
// GPU's code has no such launch it is an ordinary one. grid: whole clusters; 1: none, and any GPU.
template <typename... Params, typename... Args>
cudaError_t launch_clustered(int cluster, void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                             const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : code_may_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                              const Args&... args) {
  return launch_clustered(1, kernel, grid, threads, shared_bytes, stream, args...);
}

}  // namespace tailrace::cuda
