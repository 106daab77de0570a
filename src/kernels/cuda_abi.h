// The stamp by which a binary and the CUDA plugin know that they were compiled from the same interfaces. What is included
// here is what crosses the seam: tools/seam_stamp.sh follows it.
#pragma once

#include <cstdint>

#include "device/cuda_plugin.h"
#include "kernels/backend.h"

namespace tailrace {

// FNV-1a over the text of those headers and the compiler's version.
uint64_t cuda_plugin_abi();

}  // namespace tailrace
