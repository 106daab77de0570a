// Projections of few tokens on CUDA: y = W x for 1 to 16 rows, weights read once, as stored, at memory speed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/weight_form.h"

namespace tailrace::cuda {

// A packed matrix in device memory.
struct Matrix {
  WeightForm form = WeightForm::kBf16;
  const void* values = nullptr;
  const void* scales = nullptr;      // block formats
  const float* row_scale = nullptr;    // [rows] or null
  const float* block_scale = nullptr;  // kFp8: [rows][ceil(cols / kScaleBlock)] or null
  const float* bias = nullptr;       // [rows] or null
  int rows = 0, cols = 0;            // rows of whole 16 bytes
};

enum class LinearOut : uint8_t {
  kStore,     // out[m][n] = y                                                   fp32
  kResidual,  // out[m][n] += y; next[m][n] = bf16(out * next_norm); squares of this CTA
  kGated,     // gated[m][n] = act(gate) * up; matrix[0] is gate, matrix[1] is up        bf16
};

// Weights of all forms but bf16 are multiplied as f16, which holds e4m3 and integers exactly; x is divided by this
// there, so that no activation up to a million is too large.
inline constexpr float kHalfFactor = 16.0f;

// How a projection's input lies: bf16, or halves of x / kHalfFactor in an order. The last two are for linear_wide
// alone: 4 bytes of a stored row, which hold that many values, are then what a lane's registers of tensor-core operands
// need (x_position). kHalf2 is the plain order.
enum class XOrder : uint8_t { kBf16, kHalf2, kHalf4, kHalf8 };
// Where value k of a token lies.
TAILRACE_FORM_FN int x_position(XOrder order, int k) {
  const int shift = static_cast<int>(order), pack = 1 << shift;  // values of 4 bytes
  const int i = k & (4 * pack - 1), lane = i >> shift, e = i & (pack - 1);
  return shift < 2 ? k : k - i + e / 4 * 16 + e % 4 / 2 * 8 + 2 * lane + e % 2;
}

inline constexpr int kScaleBlock = 128;  // columns that a block scale covers
inline constexpr int kMaxLinearTokens = 16;
inline constexpr int kMaxLinearMatrices = 3;
inline constexpr int kMaxSquareParts = 512;  // CTAs that leave partial sums of squares

struct LinearParams {
  Matrix matrix[kMaxLinearMatrices];  // stacked by rows (kGated: side by side); the same form and cols
  int num_matrices = 1;
  LinearOut out_kind = LinearOut::kStore;
  const __nv_bfloat16* x = nullptr;   // [tokens][cols]
  int tokens = 0;
  // Where x is not normalised yet: y is multiplied by rsqrt(sum of squares / cols + eps) of its token. Null: it is.
  const float* squares = nullptr;     // [num_squares][squares_stride]
  int num_squares = 0;
  int squares_stride = kMaxLinearTokens;  // of out_squares too
  float eps = 0;
  float* out = nullptr;               // [tokens][out_stride]
  int64_t out_stride = 0;
  float softcap = 0;                  // kStore: softcap * tanh(y / softcap); 0: none
  const float* next_norm = nullptr;   // [rows] weight of the norm that follows
  __nv_bfloat16* next = nullptr;      // [tokens][rows]
  XOrder next_order = XOrder::kBf16;  // of next, or of gated; others than kBf16: linear_wide alone
  float* out_squares = nullptr;       // [linear_ctas][squares_stride]
  __nv_bfloat16* gated = nullptr;     // [tokens][rows of matrix[0]]
  bool gelu = false;                  // kGated: tanh-approximated GELU, else SiLU
};

// Once per process, before the first run_linear.
cudaError_t prepare_linear();
// CTAs of the launch: how many parts out_squares gets.
int linear_ctas(const LinearParams& params, int num_sms);
// Why no kernel on stored forms serves the matrices together (static text), or null.
const char* matrices_unsupported(const LinearParams& params);
// x, squares and out may be written by the kernel before on the stream; weights are asked for before it has ended.
cudaError_t run_linear(const LinearParams& params, int num_sms, cudaStream_t stream);

}  // namespace tailrace::cuda
