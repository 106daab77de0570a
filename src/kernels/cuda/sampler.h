// Sampling on CUDA: the choice of every row's next token, by the rules of sampler/sampler.h, in two launches a step.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "batch/batch.h"

namespace tailrace::cuda {

inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 19;

struct SamplerParams {
  const float* logits;      // [num_rows][vocab_stride], row i of the step; rows that do not sample hold anything
  int64_t vocab;            // 1..kMaxSampledVocab
  int64_t vocab_stride;     // >= vocab, a multiple of 4; logits are 16-byte aligned
  const BatchRow* rows;     // [num_rows] device; samples == 0: the row, padding too, is left alone
  int num_rows;
  RowStateView state;
  SampledRow* sampled_ring; // [ring][ring_stride] device-mapped host memory; row i of slot *step % ring is written
  int ring;
  int64_t ring_stride;      // rows a slot
  const uint64_t* step;     // device counter of the step
  void* scratch;            // sampler_scratch_bytes, 256-byte aligned; needs no initial value
};

// Mostly a copy of the logits: those of rows with bias, penalties or a minimum length.
size_t sampler_scratch_bytes(int max_rows, int64_t vocab);

// Chooses a token for each row that samples as sample_row does (log_len = kv_len): writes id, logprob, num_top and that
// many top entries to its ring slot, the id to token_log[slot][kv_len], and stopped[slot] = 1 where it is one of the row's stop
// ids and kv_len >= min_len. An idle row's ring slot gets kNoToken; so does that of a constrained row whose mask is not
// there in time, and its stopped is set. Same row, same token, whatever the other
// rows and the GPU; sums run in another order than the CPU's, so a draw within rounding of an edge may differ.
// Bytes: one pass over the logits when greedy or unfiltered; top_k, top_p and min_p re-read the blocks that can matter,
// or the row a few times when those are too many. cudaErrorInvalidValue: a shape outside of the bounds above.
cudaError_t run_sampler(const SamplerParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
