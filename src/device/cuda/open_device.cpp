// Finds a GPU and says in one line why there is none that this build can use.
#include <cstdlib>
#include <sstream>

#include "device/cuda/cuda_device.h"

namespace tailrace::cuda {
namespace {

// What the kernels are compiled for, as in the Makefile: "80 89 90a 120 ptx80".
constexpr const char* kArchs = TAILRACE_GPU_ARCHS;

// Whether one of them runs on a GPU of this compute capability (86 for 8.6): machine code does on later minors of its
// major, code with an `a` on its own alone, and PTX is compiled by the driver for whatever is later.
bool has_code_for(int capability) {
  std::istringstream archs(kArchs);
  for (std::string arch; archs >> arch;) {
    const bool ptx = arch.starts_with("ptx");
    const int number = std::atoi(arch.c_str() + (ptx ? 3 : 0));
    const bool runs = ptx ? number <= capability
                      : arch.ends_with('a') ? number == capability
                                            : number / 10 == capability / 10 && number <= capability;
    if (runs) return true;
  }
  return false;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status unavailable(std::string message) { return Status(StatusCode::kUnavailable, std::move(message)); }

Status driver_status() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return unavailable("no NVIDIA driver is installed (libcuda.so.1 was not found)");
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return unavailable("the NVIDIA driver is too old: it supports CUDA " + version_text(driver) +
                       ", this build needs CUDA " + version_text(CUDART_VERSION));
  }
  return Status();
}

Status failed(const char* what, cudaError_t error) {
  return unavailable(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

Expected<cudaDeviceProp> find_device(int index) {
  if (Status status = driver_status(); !status.ok()) return fail(status);
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0)) {
    return fail(unavailable("this machine has no NVIDIA GPU (or CUDA_VISIBLE_DEVICES hides it)"));
  }
  if (counted != cudaSuccess) return fail(failed("the NVIDIA driver cannot be used", counted));
  if (index < 0 || index >= count) {
    return fail(invalid("there is no GPU " + std::to_string(index) + ": this machine has " + std::to_string(count) +
                        ", numbered from 0"));
  }
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return fail(failed("the GPU cannot be asked what it is", error));
  }
  if (!has_code_for(properties.major * 10 + properties.minor)) {
    const std::string which = "GPU " + std::to_string(index) + " (" + properties.name + ") has compute capability " +
                              std::to_string(properties.major) + "." + std::to_string(properties.minor);
    const std::string why = properties.major < 8 ? "tailrace needs 8.0 or later"
                                                 : std::string("this build has code for ") + kArchs +
                                                       " alone (`make release` builds for all from 8.0 on)";
    return fail(StatusCode::kUnsupported, which + "; " + why);
  }
  return properties;
}

}  // namespace

Expected<std::string> probe_cuda_device(const CudaDeviceOptions& options) {
  auto properties = find_device(options.index);
  if (!properties) return fail(properties.error());
  return std::string(properties->name);
}

Expected<std::unique_ptr<Device>> create_cuda_device(const CudaDeviceOptions& options) {
  auto properties = find_device(options.index);
  if (!properties) return fail(properties.error());
  if (cudaError_t error = cudaSetDevice(options.index); error != cudaSuccess) {
    return fail(failed("the GPU cannot be opened", error));
  }
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes); error != cudaSuccess) {
    return fail(failed("the GPU cannot be opened", error));
  }
  cudaStream_t loading = nullptr;
  if (cudaError_t error = cudaStreamCreateWithFlags(&loading, cudaStreamNonBlocking); error != cudaSuccess) {
    return fail(failed("the GPU cannot be opened", error));
  }
  auto core = std::make_shared<CudaCore>(options.index, options.timed_events);
  if (cudaError_t error = core->start(loading); error != cudaSuccess) {
    cudaStreamDestroy(loading);
    return fail(failed("the GPU does not run kernels", error));
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(core), *properties, free_bytes, loading));
}

}  // namespace tailrace::cuda
