// How fast the current GPU reads its memory now: what benchmarks are held against.
#pragma once

#include <cuda_runtime.h>

namespace tailrace::cuda {

// GB/s of the best of five reductions over up to 2 GiB of its own, claimed and given back. 0: no room, or a failure.
double read_bandwidth_gbs(int num_sms);

}  // namespace tailrace::cuda
