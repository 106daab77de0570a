// The KernelTrace of CUDA: CUPTI's activity records of kernels, those inside captured graphs one by one.
#pragma once

#include <memory>

#include "base/status.h"
#include "device/kernel_trace.h"

namespace tailrace::cuda {

// To be called before the GPU's first use in the process: graphs made earlier are recorded as one. One in a process at a
// time. kUnavailable says what is missing.
Expected<std::unique_ptr<KernelTrace>> trace_kernels();

}  // namespace tailrace::cuda
