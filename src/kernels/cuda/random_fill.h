// Random weights made on the device, in packed form: what --load-format dummy measures with, in milliseconds.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/expert_form.h"
#include "kernels/cuda/weight_form.h"

namespace tailrace::cuda {

// Fills a packed matrix [rows, cols] of `form`, all of its scales_offset + rows * scale_row_bytes bytes at `packed`
// (device memory, aligned to 16), with values of mean 0 and standard deviation `deviation`: normal in kBf16, kF16 and
// kFp8 (values beyond the format's largest become that, none is NaN), uniform codes under scales of 0.75 to 1.25 times
// their mean in kInt4 and kInt8. kFp8 ends at 448 and is coarse below 2^-6: ask for about 32 and scale the rows down.
// Counter-based: bytes depend on form, shape, seed and deviation alone. Deviations of 0.005 to 1e3 keep halves normal.
// cudaErrorInvalidValue: negative sizes or cols no multiple of 32.
cudaError_t fill_random(WeightForm form, int64_t rows, int64_t cols, uint64_t seed, float deviation, void* packed,
                        cudaStream_t stream);

// The same for an expert's matrix (expert_matrix_bytes at `packed`): kMxfp4 and kNvfp4 are uniform codes under
// scales of the nearest power of two.
cudaError_t fill_random_expert(ExpertForm form, int64_t rows, int64_t cols, uint64_t seed, float deviation,
                               void* packed, cudaStream_t stream);

}  // namespace tailrace::cuda
