#include "kernels/cuda/cuda_experts.h"

#include "device/cuda/cuda_core.h"
#include "device/cuda/gpu_code.h"

namespace tailrace::cuda {

void CudaExperts::prepare(const ExpertScratch& scratch, int num_sms, ExpertCounter* counters) {
  scratch_ = &scratch, counters_ = counters;
  CUDA_CHECK(prepare_experts_few(num_sms));
  if (has_hopper_code()) CUDA_CHECK(prepare_experts_many());
}

namespace {

ExpertForm form_of(const ExpertWeights& weights) {
  const Weight& w = weights.first;
  return w.scale_cols == kScaleBlockCols && w.cols > kScaleBlockCols ? ExpertForm::kFp8Block : *expert_form_of(w.format);
}

// How a step's tokens are laid out for the products.
struct Layout {
  int entries, experts, tile;  // the shared one's among them
  bool many;
  Layout(const MoeBlock& b, const StepRows& rows)
      : entries(rows.num_tokens * b.taken()),
        experts(static_cast<int>(b.num_experts())),
        many(has_hopper_code() && rows.num_tokens > kMostFewExpertTokens) {
    const bool blocks = form_of(b.gate) == ExpertForm::kFp8Block || form_of(b.down) == ExpertForm::kFp8Block;
    tile = many ? many_tile_tokens(int64_t{rows.num_tokens} * b.top_k, b.router.rows, blocks)
                : few_tile_tokens(rows.num_tokens);
  }
};

}  // namespace

void CudaExperts::route(const MoeBlock& b, const StepRows& rows, bool normed, cudaStream_t stream) {
  const ExpertScratch& s = *scratch_;
  const Layout layout(b, rows);
  const Norm& norm = b.router_norm.weight != nullptr ? b.router_norm : b.norm;
  const int hidden = static_cast<int>(b.router.cols);
  CUDA_CHECK(cuda::route({.rows = rows,
                          .x = s.x,
                          .hidden = hidden,
                          .norm = norm.weight,
                          .eps = norm.eps,
                          .expert_norm = b.norm.weight,
                          .router_format = b.router.format,
                          .router = b.router.data,
                          .bias = b.router.bias,
                          .expert_scale = b.expert_scale,
                          .dense_gate = b.dense.share.data,
                          .experts = static_cast<int>(b.router.rows),
                          .top_k = b.top_k,
                          .shared_last = b.shared_last(),
                          .counters = rows.num_tokens == rows.num_decode_rows ? counters_ : nullptr,
                          .tile_tokens = layout.tile,
                          .gathers = layout.many,
                          .normed = normed ? nullptr : s.normed,
                          .out = s.routing},
                         stream));
  if (!layout.many) return;
  CUDA_CHECK(gather_entries(s.routing, rows.num_tokens, b.taken(), hidden, s.normed, s.gathered, stream));
}

void CudaExperts::product(const ExpertWeights& one, const ExpertWeights* other, ExpertParams p, bool many,
                          cudaStream_t stream) {
  p.form = form_of(one);
  p.matrix[0] = {one.first.data, one.stride, one.first.bias, one.first.scale};
  if (other != nullptr) p.matrix[1] = {other->first.data, other->stride, other->first.bias, other->first.scale};
  p.rows = static_cast<int>(one.first.rows), p.cols = static_cast<int>(one.first.cols), p.gated = other != nullptr;
  CUDA_CHECK(many ? run_experts_many(p, stream) : run_experts_few(p, stream));
}

void CudaExperts::multiply(const MoeBlock& b, const StepRows& rows, cudaStream_t stream) {
  const ExpertScratch& s = *scratch_;
  const Layout layout(b, rows);
  const ExpertParams common{.matrix = {},
                            .tiles = s.routing.tiles,
                            .num_tiles = s.routing.counts + kCountTiles,
                            .tile_tokens = layout.tile,
                            .most_tiles = static_cast<int>(most_expert_tiles(layout.experts, layout.entries, layout.tile)),
                            .most_entries = layout.entries};
  ExpertParams up = common, down = common;
  up.x = layout.many ? s.gathered : s.normed, up.token = layout.many ? nullptr : s.routing.token;
  up.factor_of = s.routing.token, up.factor = s.routing.factor;
  up.activation = b.activation, up.alpha = b.clamped.alpha, up.limit = b.clamped.limit;
  up.gated_out = s.gated;
  product(b.gate, &b.up, up, layout.many, stream);
  down.x = s.gated, down.out = s.y;
  product(b.down, nullptr, down, layout.many, stream);
}

int CudaExperts::finish(const MoeBlock& b, const StepRows& rows, const NextNorm& next, int squares_stride,
                        cudaStream_t stream) {
  const ExpertScratch& s = *scratch_;
  const MixParams params{.routing = s.routing,
                         .tokens = rows.num_tokens,
                         .taken = b.taken(),
                         .hidden = static_cast<int>(b.router.cols),
                         .y = s.y,
                         .x = s.x,
                         .dense = b.dense.present() ? s.dense : nullptr,
                         .dense_share = b.dense.present() && b.dense.share.rows > 0 ? s.routing.dense_share : nullptr,
                         .experts_norm = b.experts_post_norm.weight,
                         .dense_norm = b.dense.post_norm.weight,
                         .sum_norm = b.post_norm.weight,
                         .experts_eps = b.experts_post_norm.eps,
                         .dense_eps = b.dense.post_norm.eps,
                         .sum_eps = b.post_norm.eps,
                         .out_scale = b.out_scale,
                         .next = next,
                         .squares_stride = squares_stride};
  CUDA_CHECK(mix(params, stream));
  return mixture_parts(params);
}

}  // namespace tailrace::cuda
