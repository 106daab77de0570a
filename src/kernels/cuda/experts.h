// Products of tokens with the experts they take, on CUDA: every expert's weights once, as stored, however many tokens
// chose it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/blocks.h"
#include "kernels/cuda/expert_form.h"
#include "kernels/cuda/moe_route.h"

namespace tailrace::cuda {

// One matrix of every expert in device memory; see ExpertWeights.
struct ExpertMatrix {
  const void* values = nullptr;  // of expert 0
  int64_t stride = 0;            // bytes to the next expert's
  const float* bias = nullptr;   // [experts][rows] or null
  const float* scale = nullptr;  // [experts][rows] of the sums, or null; kFp8Block: [experts][rows][blocks of 128 columns]
};

struct ExpertParams {
  ExpertForm form = ExpertForm::kBf16;
  ExpertMatrix matrix[2];  // gated: gate and up
  int rows = 0, cols = 0;  // of a matrix; cols a multiple of 8
  bool gated = false;
  const __nv_bfloat16* x = nullptr;    // [..][cols]
  const int32_t* token = nullptr;      // [entries] row of x; null: the entry's own
  const int32_t* factor_of = nullptr;  // [entries] index of an entry's factor
  const float* factor = nullptr;       // multiplies an entry's sums before the bias; null: 1
  const ExpertTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int tile_tokens = 0;  // what the tiles were made for: 8 or 16 (few), 64 or 128 (many)
  int most_tiles = 0, most_entries = 0;
  Activation activation = Activation::kClampedSwiglu;  // gated
  float alpha = 0, limit = 0;          // kClampedSwiglu: min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u) + 1)
  __nv_bfloat16* gated_out = nullptr;  // [entries][rows]
  float* out = nullptr;                // [entries][rows], not gated
};

// What a step's mixtures work in.
struct ExpertScratch {
  float* x;               // [tokens][hidden] residual
  __nv_bfloat16* normed;  // [tokens][hidden] bf16(x * norm)
  Routing routing;
  __nv_bfloat16* gathered;  // [entries][hidden], many tokens; until y, whose memory it is
  __nv_bfloat16* gated;     // [entries][rows of gate]
  float* y;                 // [entries][hidden]
  __nv_bfloat16* dense_in;  // [tokens][hidden] normed, of the branch beside the experts
  float* dense;             // [tokens][hidden] what that gave
};

// Few tokens an expert, any GPU.
cudaError_t prepare_experts_few(int num_sms);
cudaError_t run_experts_few(const ExpertParams& params, cudaStream_t stream);
constexpr int few_tile_tokens(int tokens) { return tokens <= 32 ? 8 : 16; }

// Many tokens an expert, Hopper alone. x: [most_entries][cols], entry by entry (token null).
cudaError_t prepare_experts_many();
cudaError_t run_experts_many(const ExpertParams& params, cudaStream_t stream);
// Of the routed experts: a shared one fills tiles of any size. blocks: kFp8Block is among the step's forms: a block's
// sums beside all sums leave registers for 64 tokens.
constexpr int many_tile_tokens(int64_t entries, int64_t experts, bool blocks) {
  return blocks || entries <= experts * 64 ? 64 : 128;
}

}  // namespace tailrace::cuda
