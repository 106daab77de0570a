#include "kernels/cuda/cuda_products.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/gpu_code.h"
#include "kernels/cuda/linear_wide.h"
#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {
namespace {

// The order that all matrices take x in, or kBf16.
template <typename OrderOf>
XOrder common_order(CudaProducts::Weights weights, const OrderOf& order_of) {
  const XOrder first = order_of(**weights.begin());
  const bool alike =
      std::all_of(weights.begin(), weights.end(), [&](const Weight* w) { return order_of(*w) == first; });
  return alike ? first : XOrder::kBf16;
}

XOrder library_order_of(const Weight& w) {
  return form_of(w.format) == WeightForm::kBf16 ? XOrder::kBf16 : XOrder::kHalf2;
}

GemmShape gemm_shape(const Weight& w, ProductOut kind) {
  return {.n = static_cast<int>(w.rows), .k = static_cast<int>(w.cols), .half = library_order_of(w) == XOrder::kHalf2,
          .fp32_out = kind != ProductOut::kGated};
}

}  // namespace

Matrix matrix_of(const Weight& w) {
  const WeightForm form = *form_of(w.format);  // packed_bytes refused what has none
  const auto* base = static_cast<const std::byte*>(w.data);
  const bool per_row = w.scale_cols == w.cols;
  return {.form = form,
          .values = base,
          .scales = base + scales_offset(form, w.rows, w.cols),
          .row_scale = per_row ? w.scale : nullptr,
          .block_scale = per_row ? nullptr : w.scale,
          .bias = w.bias,
          .rows = static_cast<int>(w.rows),
          .cols = static_cast<int>(w.cols)};
}

Status CudaProducts::prepare(const BlockList& blocks, const CudaShape& shape, const CudaScratch& scratch) {
  ordered_ = scratch.ordered, widened_ = scratch.widened;
  auto gemm = GemmLt::create();
  if (!gemm) return gemm.error();
  gemm_ = std::move(*gemm);
  gemm_->set_workspace(scratch.gemm);
  CUDA_CHECK(prepare_linear());
  if (has_hopper_code()) CUDA_CHECK(prepare_linear_wide());
  Status status;
  for (const LayerBlock& block : blocks) {
    for_each_product(block, [&](const Weight& w, ProductOut kind) {
      const int tokens = kind == ProductOut::kLogits ? shape.limits.max_rows : shape.limits.max_step_tokens;
      if (status.ok()) status = gemm_->prepare(gemm_shape(w, kind), tokens);
    });
  }
  return status;
}

int CudaProducts::most_own_tokens(WeightForm form) {
  if (!has_hopper_code()) return kMaxLinearTokens;
  return form == WeightForm::kBf16 ? kMostWideBf16Tokens : kMostWideTokens;
}

bool CudaProducts::own(Weights weights, int tokens) {
  return std::all_of(weights.begin(), weights.end(),
                     [&](const Weight* w) { return tokens <= most_own_tokens(*form_of(w->format)); });
}

XOrder CudaProducts::order_for(Weights weights, int tokens) {
  if (!own(weights, tokens)) return library_order(weights);
  if (tokens <= kMaxLinearTokens) return XOrder::kBf16;
  return common_order(weights, [](const Weight& w) { return x_order(*form_of(w.format)); });
}

XOrder CudaProducts::library_order(Weights weights) { return common_order(weights, library_order_of); }

int CudaProducts::run_own(LinearParams params, XOrder order, cudaStream_t stream) {
  if (params.tokens <= kMaxLinearTokens) {
    CHECK(order == XOrder::kBf16);
    CUDA_CHECK(run_linear(params, num_sms_, stream));
    return linear_ctas(params, num_sms_);
  }
  const XOrder wanted = x_order(params.matrix[0].form);
  if (order != wanted) {
    CHECK(order == XOrder::kBf16);
    CUDA_CHECK(order_tokens(params.x, params.tokens, params.matrix[0].cols, wanted, ordered_, stream));
    params.x = ordered_;
  }
  params.squares_stride = params.tokens;
  CUDA_CHECK(run_linear_wide(params, num_sms_, stream));
  return linear_wide_parts(params);
}

void CudaProducts::run_library(const Library& p, cudaStream_t stream) {
  const Matrix matrix = matrix_of(p.w);
  Gemm gemm{.shape = gemm_shape(p.w, p.kind), .x = p.x, .w = matrix.values, .tokens = p.tokens, .out = p.out,
            .out_stride = p.out_stride, .accumulate = p.accumulate};
  if (gemm.shape.half && gemm.shape.fp32_out) gemm.alpha = kHalfFactor;
  if (const XOrder wanted = library_order_of(p.w); p.order != wanted) {
    CHECK(p.order == XOrder::kBf16);
    CUDA_CHECK(order_tokens(p.x, p.tokens, matrix.cols, wanted, ordered_, stream));
    gemm.x = ordered_;
  }
  if (needs_widening(matrix.form)) {
    CUDA_CHECK(widen(matrix, widened_, stream));
    gemm.w = widened_;
  }
  CUDA_CHECK(gemm_->run(gemm, stream));
}

}  // namespace tailrace::cuda
