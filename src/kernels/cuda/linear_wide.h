// Projections of more tokens on Hopper: y = W x for any number of rows, weights in their stored form, on wgmma.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/linear_decode.h"

namespace tailrace::cuda {

// Up to so many tokens the kernel is faster than cuBLASLt (bf16), or than that and widening the matrix for it (other
// forms).
inline constexpr int kMostWideBf16Tokens = 64, kMostWideTokens = 512;

// The order of x that a matrix of the form is multiplied with (see x_position).
constexpr XOrder x_order(WeightForm form) {
  switch (form) {
    case WeightForm::kBf16: return XOrder::kBf16;
    case WeightForm::kF16: return XOrder::kHalf2;
    case WeightForm::kInt4: case WeightForm::kNvfp4: return XOrder::kHalf8;
    default: return XOrder::kHalf4;
  }
}

// Once per process, before the first run_linear_wide; has_hopper_code() only.
cudaError_t prepare_linear_wide();
// How many parts out_squares gets.
int linear_wide_parts(const LinearParams& params);
// Any number of tokens, of matrices that matrices_unsupported lets pass; params.x in x_order(form). A token's result
// depends neither on the other tokens nor, among counts that have the same tile, on how many there are. x, squares and
// out may be written by the kernel before on the stream.
cudaError_t run_linear_wide(const LinearParams& params, int num_sms, cudaStream_t stream);

}  // namespace tailrace::cuda
