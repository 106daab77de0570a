#include "kernels/cuda/cuda_experts.h"

#include "device/cuda/cuda_core.h"
#include "device/cuda/gpu_code.h"

namespace tailrace::cuda {

void CudaExperts::prepare(const ExpertScratch& scratch, int num_sms) {
  scratch_ = &scratch;
  CUDA_CHECK(prepare_experts_few(num_sms));
  if (has_hopper_code()) CUDA_CHECK(prepare_experts_many());
}

void CudaExperts::multiply(const ExpertWeights& one, const ExpertWeights* other, ExpertParams p, bool many,
                           cudaStream_t stream) {
  p.form = *expert_form_of(one.first.format);
  p.matrix[0] = {one.first.data, one.stride, one.first.bias};
  if (other != nullptr) p.matrix[1] = {other->first.data, other->stride, other->first.bias};
  p.rows = static_cast<int>(one.first.rows), p.cols = static_cast<int>(one.first.cols), p.gated = other != nullptr;
  CUDA_CHECK(many ? run_experts_many(p, stream) : run_experts_few(p, stream));
}

void CudaExperts::run(const MoeBlock& b, const StepRows& rows, bool normed, const NextNorm& next, int squares_stride,
                      cudaStream_t stream) {
  const ExpertScratch& s = *scratch_;
  const int hidden = static_cast<int>(b.router.cols), entries = rows.num_tokens * b.top_k;
  const int experts = static_cast<int>(b.router.rows);
  const bool many = has_hopper_code() && rows.num_tokens > kMostFewExpertTokens;
  const int tile = many ? many_tile_tokens(entries, experts) : few_tile_tokens(rows.num_tokens);
  CUDA_CHECK(route({.rows = rows,
                    .x = s.x,
                    .hidden = hidden,
                    .norm = b.norm.weight,
                    .eps = b.norm.eps,
                    .router_format = b.router.format,
                    .router = b.router.data,
                    .bias = b.router.bias,
                    .experts = experts,
                    .top_k = b.top_k,
                    .tile_tokens = tile,
                    .gathers = many,
                    .normed = normed ? nullptr : s.normed,
                    .out = s.routing},
                   stream));
  if (many) CUDA_CHECK(gather_entries(s.routing, rows.num_tokens, b.top_k, hidden, s.normed, s.gathered, stream));
  const ExpertParams common{.matrix = {},
                            .tiles = s.routing.tiles,
                            .num_tiles = s.routing.counts + kCountTiles,
                            .tile_tokens = tile,
                            .most_tiles = static_cast<int>(most_expert_tiles(experts, entries, tile)),
                            .most_entries = entries};
  ExpertParams up = common, down = common;
  up.x = many ? s.gathered : s.normed, up.token = many ? nullptr : s.routing.token;
  up.factor_of = s.routing.token, up.factor = s.routing.factor;
  up.alpha = b.clamped.alpha, up.limit = b.clamped.limit;
  up.gated_out = s.gated;
  multiply(b.gate, &b.up, up, many, stream);
  down.x = s.gated, down.out = s.y;
  multiply(b.down, nullptr, down, many, stream);
  CUDA_CHECK(mix({.routing = s.routing,
                  .tokens = rows.num_tokens,
                  .top_k = b.top_k,
                  .hidden = hidden,
                  .y = s.y,
                  .x = s.x,
                  .next = next,
                  .squares_stride = squares_stride},
                 stream));
}

}  // namespace tailrace::cuda
