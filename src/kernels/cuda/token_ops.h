// The CUDA kernels of a step that are not products or attention: its begin and end, embedding, norms, q|k|v,
// activation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "batch/slab.h"
#include "device/cuda/step_stamp.h"
#include "kernels/cuda/linear_decode.h"

namespace tailrace::cuda {

// What the device knows of the step that runs. Advanced by begin_step, so that a captured graph needs nothing from the
// host.
struct StepState {
  uint64_t next_launch;  // begin_step takes it
  uint64_t launch;       // of the running step
  uint64_t begun_ns;
  int32_t num_rows, num_decode_rows;
};

// Query tiles of the extend rows, for one shape of attention.
struct ExtendTiles {
  int32_t* tile_start;   // [extend rows + 1], see ExtendParams
  int32_t gqa_ratio, tile_rows;
};

struct BeginParams {
  PatchTargets targets;
  const std::byte* slabs[kStagingRing];
  StepState* state;
  int32_t padded_rows;   // rows up to here that the step lacks become idle rows of `dummy_slot`
  int32_t dummy_slot;
  int32_t first_extend_row;
  ExtendTiles tiles[kMaxKvGroups];
  int32_t num_tiles;
};
// Applies the slab of this launch, or moves every row one token on; pads; turns stopped rows idle; counts tiles. First
// kernel of a step.
cudaError_t begin_step(const BeginParams& params, cudaStream_t stream);
// Stamps stamps[launch % kStagingRing] when everything before it on the stream is done. Last kernel of a step.
cudaError_t end_step(const StepState* state, StepStamp* stamps, cudaStream_t stream);

// The rows of a step, for kernels that work on tokens. Decode rows hold token r; others are found by their q_start.
struct StepRows {
  const BatchRow* rows;
  int num_rows, num_decode_rows, num_tokens;
};

// What a norm that follows needs (see LinearParams): next = bf16(x * weight), squares[0][token]; next null: nothing.
struct NextNorm {
  const float* weight = nullptr;
  __nv_bfloat16* next = nullptr;
  float* squares = nullptr;
};

// x[token] = scale * table[id] -> [tokens][hidden] fp32. The id is the row's token_log entry at the token's position.
// Zero for idle rows.
cudaError_t embed(const StepRows& rows, const RowStateView& state, const Matrix& table, float scale, float* x,
                  const NextNorm& next, cudaStream_t stream);

// out[token] = bf16(x * rsqrt(mean(x^2) + eps) * weight), in an order
cudaError_t rms_norm(const float* x, int tokens, int hidden, const float* weight, float eps, XOrder order,
                     __nv_bfloat16* out, cudaStream_t stream);

// The same for the last token of each row, [num_rows][hidden]; zero where a row does not sample.
cudaError_t rms_norm_last(const StepRows& rows, const float* x, int hidden, const float* weight, float eps,
                          XOrder order, __nv_bfloat16* out, cudaStream_t stream);

// q|k|v of a token -> q for attention, k and v in the pool (not of idle rows): bias, norms over a head, rotation of the
// first rotary_dim dims (NeoX pairs), in this order.
struct QkvParams {
  const float* qkv;          // [tokens][(q_heads + 2 kv_heads) * head_dim], or without v
  bool keys_are_values;      // v is k before its norm
  const float *q_bias, *k_bias, *v_bias;  // null: none, or added already
  const float *q_norm, *k_norm, *v_norm;  // [head_dim] or null
  float q_eps, k_eps, v_eps;
  const float* inv_freq;     // [rotary_dim / 2]
  int rotary_dim;
  float rope_scale;
  int q_heads, kv_heads, head_dim;
  __nv_bfloat16* q;          // [tokens][q_heads][head_dim]
  void* pool;                // of the layer (kv_layout.h)
  bool fp8;                  // it holds e4m3, else bf16
  const int32_t* block_table;
  int64_t table_stride;
};
cudaError_t finish_qkv(const StepRows& rows, const QkvParams& params, cudaStream_t stream);

// out = bf16(act(gate) * up), in an order
struct GateParams {
  const __nv_bfloat16* gate_up;  // [tokens][2 * width]: gate, then up
  bool gate_half, up_half;       // whether it is halves of the value / kHalfFactor, else bf16
  const float *gate_bias, *up_bias;  // [width], or null: added already
  int tokens, width;
  bool gelu;                     // tanh-approximated GELU, else SiLU
  XOrder order;
  __nv_bfloat16* out;            // [tokens][width]
};
cudaError_t gate(const GateParams& params, cudaStream_t stream);

// attended[i] = bf16(attended[i] * sigmoid(gate[i])), a multiple of 4 values
cudaError_t gate_attention(__nv_bfloat16* attended, const float* gate, int64_t count, cudaStream_t stream);

// x[token] += bias [width]
cudaError_t add_bias(float* x, int tokens, int width, const float* bias, cudaStream_t stream);

// x = cap * tanh(x / cap)
cudaError_t soft_cap(float* x, int64_t count, float cap, cudaStream_t stream);

// out[tokens][cols] = x in another order. cols: whole 16 bytes of the form that the order is for.
cudaError_t order_tokens(const __nv_bfloat16* x, int tokens, int cols, XOrder order, void* out, cudaStream_t stream);

// The matrix as halves [rows][cols], for products of many tokens: a value times its scale in fp32, rounded once; what
// is too large for a half becomes the largest one. Forms other than bf16 and f16, which need no widening.
cudaError_t widen(const Matrix& matrix, __half* out, cudaStream_t stream);

}  // namespace tailrace::cuda
