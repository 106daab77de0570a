// Linear attention by the gated delta rule on CUDA (blocks.h: GatedDeltaBlock): decode rows move
// their state one token on, extend rows take chunks of 64 tokens in closed form.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "batch/batch.h"
#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {

inline constexpr int kDeltaChunk = 64;  // tokens that the closed form takes at once
inline constexpr int kDeltaInputs = 4;  // conv_width: the kernels know no other
// A slot's inputs are a ring: that of the token at position p lies at p % kDeltaInputs, so that the
// CTAs of a decode row, which share channels, read three of its places and write the fourth in any
// order.

// Whether the kernels serve heads of these sizes: k_dim == v_dim, 32, 64 or 128.
constexpr bool delta_dim_served(int k_dim, int v_dim) {
  return k_dim == v_dim && (k_dim == 32 || k_dim == 64 || k_dim == 128);
}

// What the extend rows of a step work in; of the step's tokens, decode rows' places unused.
struct DeltaScratch {
  float*
      mixed;  // [tokens][channels] q, k (normed) and v behind the convolution; v becomes U, then o
  float* w;   // [tokens][v_heads * dim] W = T (beta exp(G) K), see gated_delta_extend.cu
  float* p;   // [tokens][v_heads][kDeltaChunk] exp(G_i - G_j) q_i k_j
  float* decay;  // [tokens][v_heads] G: sum of g from the chunk's first token on
};

// b and a of decode rows where the recurrent kernel is to make them itself: rows of a few kilobytes, for which a launch
// of their own takes longer than all of them.
struct DeltaGates {
  const __nv_bfloat16* b = nullptr;  // [v_heads][hidden]; null: `ba` has them
  const __nv_bfloat16* a = nullptr;  // [v_heads][hidden]
  const __nv_bfloat16* x = nullptr;  // [tokens][hidden], in front of its norm's factor
  int hidden = 0;                    // delta_gates_served
  const float* squares = nullptr;    // as LinearParams
  int num_squares = 0, squares_stride = 0;
  float eps = 0;
};
// Of more rows a launch of their own takes less: every v-head's CTAs read x, 1.5 us a row on an H200.
inline constexpr int kMostGateRows = 2;
constexpr bool delta_gates_served(int64_t hidden, int dim) { return hidden % (8 * std::max(dim / 32, 1)) == 0; }

struct DeltaParams {
  StepRows rows;
  StatePoolView states;
  int layer = 0, k_heads = 0, v_heads = 0,
      dim = 0;                // dim: k_dim and v_dim; (2 k_heads + v_heads) dim channels
  const float* in = nullptr;  // [tokens][in_stride]: q | k | v | z as projected
  int64_t in_stride = 0;
  const float* ba = nullptr;       // [tokens][2 * v_heads]: b, then a; null: `gates`, with decode rows alone
  DeltaGates gates{};
  const float* conv = nullptr;     // [channels][kDeltaInputs]
  const float* decay = nullptr;    // [v_heads]
  const float* dt_bias = nullptr;  // [v_heads]
  const float* norm = nullptr;     // [dim] of the output
  float eps = 0;
  DeltaScratch scratch{};
  __nv_bfloat16* out = nullptr;  // [tokens][v_heads * dim] norm(o) * silu(z)
};

// Boot only.
cudaError_t prepare_delta();
// The decode rows: the first rows.num_decode_rows. One launch; Hopper's clusters where dim is
// above 32.
cudaError_t run_delta_decode(const DeltaParams& params, cudaStream_t stream);
// The rows behind those. Four launches.
cudaError_t run_delta_extend(const DeltaParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
