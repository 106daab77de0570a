#include "device/cuda/gpu_code.h"

#include <cuda_runtime.h>

namespace tailrace::cuda {
namespace {

__global__ void probe_kernel() {}

int ask_driver() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
    cudaGetLastError();  // no code for this device is an answer, not an error that a later call should find
    return 0;
  }
  return attributes.ptxVersion;  // what __CUDA_ARCH__ was, also where the driver compiled it for a later GPU
}

}  // namespace

int gpu_code_arch() {
  static const int arch = ask_driver();
  return arch;
}

}  // namespace tailrace::cuda
