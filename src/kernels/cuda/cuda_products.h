// CudaProducts: which kernel multiplies by a matrix at how many tokens, and in which order that takes x.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <memory>

#include "kernels/cuda/cuda_scratch.h"
#include "kernels/cuda/cuda_shape.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/linear_decode.h"

namespace tailrace::cuda {

Matrix matrix_of(const Weight& w);

// Own kernels multiply few tokens by the weights as stored. Beyond, cuBLASLt does: bf16 by bf16, all else as f16, as
// own kernels do, so that weights and x have one precision for every number of tokens.
class CudaProducts {
 public:
  using Weights = std::initializer_list<const Weight*>;

  explicit CudaProducts(int num_sms) : num_sms_(num_sms) {}
  // Loads kernels and chooses cuBLASLt's algorithms. Boot only; kUnsupported says what is missing.
  Status prepare(const BlockList& blocks, const CudaShape& shape, const CudaScratch& scratch);

  bool brings_new_algorithm(int tokens) const { return gemm_->brings_new_algorithm(tokens); }

  // Up to so many tokens own kernels are faster than cuBLASLt, quantised matrices widened for it (docs/KERNELS.md).
  static int most_own_tokens(WeightForm form);
  // Whether products of so many tokens with these matrices run on own kernels.
  static bool own(Weights weights, int tokens);
  // The order of x that a product of so many tokens takes, and that cuBLASLt takes: of all of the matrices, or kBf16,
  // which every product takes, where they differ.
  static XOrder order_for(Weights weights, int tokens);
  static XOrder library_order(Weights weights);

  // On own kernels; params.x lies in `order`: the product's, or kBf16. Returns the number of parts of out_squares.
  int run_own(LinearParams params, XOrder order, cudaStream_t stream);

  // On cuBLASLt: out = W x, without bias; x likewise.
  struct Library {
    const Weight& w;
    const __nv_bfloat16* x;
    XOrder order;
    int tokens;
    void* out;  // fp32; kGated: bf16, or f16 of the value / kHalfFactor where the weights are multiplied as f16
    int64_t out_stride;
    ProductOut kind = ProductOut::kSums;
    bool accumulate = false;
  };
  void run_library(const Library& product, cudaStream_t stream);

 private:
  int num_sms_;
  __nv_bfloat16* ordered_ = nullptr;
  __half* widened_ = nullptr;
  std::unique_ptr<GemmLt> gemm_;
};

}  // namespace tailrace::cuda
