// CudaExperts: queues a mixture of experts: routing, products as few or many tokens an expert ask for, the weighted
// sum.
#pragma once

#include <cuda_runtime.h>

#include "kernels/blocks.h"
#include "kernels/cuda/experts.h"

namespace tailrace::cuda {

// Steps of up to so many tokens take the kernels for few tokens an expert; without Hopper's code all do.
inline constexpr int kMostFewExpertTokens = 64;

class CudaExperts {
 public:
  // Loads kernels; `scratch` outlives the object. counters: device memory, see RouteParams, or null. Boot only.
  void prepare(const ExpertScratch& scratch, int num_sms, ExpertCounter* counters = nullptr);
  // Chooses the experts of each token. normed: scratch.normed holds bf16(x * norm) already.
  void route(const MoeBlock& block, const StepRows& rows, bool normed, cudaStream_t stream);
  // The chosen experts' products, as route left them.
  void multiply(const MoeBlock& block, const StepRows& rows, cudaStream_t stream);
  // The block's end: scratch.x gets the mixture, with what scratch.dense holds where the block has a branch beside. next:
  // what the block after needs, its sums of squares in parts of squares_stride. Returns the number of parts.
  int finish(const MoeBlock& block, const StepRows& rows, const NextNorm& next, int squares_stride, cudaStream_t stream);

 private:
  void product(const ExpertWeights& one, const ExpertWeights* other, ExpertParams params, bool many,
               cudaStream_t stream);

  const ExpertScratch* scratch_ = nullptr;
  ExpertCounter* counters_ = nullptr;
};

}  // namespace tailrace::cuda
