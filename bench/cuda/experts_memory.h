// Memory: what a step's mixtures work in on the device, for bench_experts' checks and timings.
#pragma once

#include "kernels/cuda/experts.h"
#include "kernels/cuda/gpu_workbench.h"

namespace tailrace::cuda::workbench {

inline constexpr int kSms = 132;
inline constexpr ExpertForm kForms[] = {ExpertForm::kMxfp4, ExpertForm::kNvfp4, ExpertForm::kFp8, ExpertForm::kFp8Block,
                                        ExpertForm::kBf16};

inline const char* form_name(ExpertForm form) {
  const char* names[kNumExpertForms] = {"bf16", "mxfp4", "nvfp4", "fp8", "fp8/128"};
  return names[static_cast<int>(form)];
}
inline Format format_of(ExpertForm form) {
  const Format formats[kNumExpertForms] = {Format::kBF16, Format::kMXFP4, Format::kNVFP4, Format::kF8E4M3, Format::kF8E4M3};
  return formats[static_cast<int>(form)];
}
inline int scales_per_row(ExpertForm form, int cols) {
  return form == ExpertForm::kFp8Block ? (cols + kScaleBlockCols - 1) / kScaleBlockCols : 1;
}

struct Memory {
  Buffer<float> x, y, logits, shares, factor, norm, next_norm, squares, dense, dense_share;
  Buffer<__nv_bfloat16> normed, gated, next;
  Buffer<int32_t> ids, entry, token, counts, arrived;
  Buffer<ExpertTile> tiles;
  Buffer<ExpertCounter> counters;
  Buffer<BatchRow> rows;
  ExpertScratch scratch;

  // experts, taken: the shared one among them.
  Memory(int hidden, int width, int experts, int taken, int tokens)
      : x(size_t(tokens) * hidden),
        y(size_t(tokens) * taken * hidden),
        logits(size_t(tokens) * experts),
        shares(size_t(tokens) * taken),
        factor(tokens),
        norm(hidden),
        next_norm(hidden),
        squares(size_t(8) * std::max(tokens, 16)),
        dense(size_t(tokens) * hidden),
        dense_share(tokens),
        normed(size_t(tokens) * hidden),
        gated(size_t(tokens) * taken * width),
        next(size_t(tokens) * hidden),
        ids(size_t(tokens) * taken),
        entry(ids.count),
        token(ids.count),
        counts(kRoutingCounts),
        arrived(tokens),
        tiles(most_expert_tiles(experts, ids.count, 8)),
        counters(kMostCountedRows + 1),
        rows(tokens) {
    counts.zero(), arrived.zero(), counters.zero();
    scratch = {.x = x.device,
               .normed = normed.device,
               .routing = {.logits = logits.device,
                           .ids = ids.device,
                           .shares = shares.device,
                           .entry = entry.device,
                           .token = token.device,
                           .factor = factor.device,
                           .dense_share = dense_share.device,
                           .tiles = tiles.device,
                           .counts = counts.device,
                           .arrived = arrived.device},
               .gathered = reinterpret_cast<__nv_bfloat16*>(y.device),
               .gated = gated.device,
               .y = y.device,
               .dense_in = nullptr,
               .dense = dense.device};
  }
};

// Timings at the models' shapes (experts_speed.cu).
void run_speed();

}  // namespace tailrace::cuda::workbench
