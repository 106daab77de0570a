// The CUDA backend: a step as one captured graph (decode) or a run of launches, never blocking, nothing allocated.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace tailrace::cuda {

// `device` is a CudaDevice and outlives the backend.
std::unique_ptr<Backend> create_cuda_backend(Device& device, const BackendOptions& options);

}  // namespace tailrace::cuda
