// The routing of a mixture of experts on CUDA: which experts each token takes, the tokens of each expert in tiles, and
// the sum of what the experts gave. Nothing of it visits the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/format.h"
#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {

inline constexpr int kMostExperts = 256, kMostTopK = 16;  // routed, beside a shared one; of a token, with that

// Up to `count` entries of one expert, from `first` on. An entry is a token at one of its experts; those of an expert
// lie together.
struct ExpertTile {
  int32_t expert, first, count;
};

// What a step's routing leaves on the device. taken: top_k, and one more where the shared expert is among the others,
// then the last of each token.
struct Routing {
  float* logits;   // [tokens][experts]
  int32_t* ids;    // [tokens][taken] experts, largest logit first, ties to the lower id; -1: an idle row's
  float* shares;   // [tokens][taken] softmax over the chosen, times the expert's scale; dense_share of a shared one
  int32_t* entry;  // [tokens][taken] where the token is among the entries; -1. Many tokens: until gather_entries its
                   // place among its expert's
  int32_t* token;     // [entries] whose entry it is
  float* factor;      // [tokens] of the norm: 1 / rms
  float* dense_share; // [tokens] of the branch beside the experts, or of the shared expert
  ExpertTile* tiles;  // [most_expert_tiles]
  int32_t* counts;    // [kRoutingCounts]; zero before the first launch
  int32_t* arrived;   // [tokens] CTAs that have written logits of the token; likewise
};
// counts: number of tiles, tokens that have chosen, entries of each expert so far (both zero between launches), the
// first entry of each.
inline constexpr int kCountTiles = 0, kCountChosen = 1, kCountOf = 2, kFirstOf = kCountOf + kMostExperts + 1,
                     kRoutingCounts = kFirstOf + kMostExperts + 1;

// Tiles of up to tile_tokens entries that there may be.
constexpr int64_t most_expert_tiles(int64_t experts, int64_t entries, int tile_tokens) {
  return (experts < entries ? experts : entries) + entries / tile_tokens;
}

// What decode steps of as many rows have read of the routed experts; indexed by rows, up to kMostCountedRows.
struct ExpertCounter {
  unsigned long long mixtures, distinct;
};
inline constexpr int kMostCountedRows = 1024;

struct RouteParams {
  StepRows rows;
  const float* x = nullptr;     // [tokens][hidden] residual
  int hidden = 0;               // a multiple of 8
  const float* norm = nullptr;  // [hidden] of the router's input
  float eps = 0;
  const float* expert_norm = nullptr;    // [hidden] of the experts' input
  Format router_format = Format::kBF16;  // or F16, F32: rows as stored
  const void* router = nullptr;          // [experts][hidden]
  const float* bias = nullptr;           // [experts] or null
  const float* expert_scale = nullptr;   // [experts] or null
  const void* dense_gate = nullptr;      // [hidden], stored as the router is, or null: dense_share is sigmoid of its logit
  int experts = 0, top_k = 0;            // routed; at most kMostExperts, kMostTopK
  bool shared_last = false;              // every token takes expert number `experts`, too, dense_share times
  ExpertCounter* counters = nullptr;     // [kMostCountedRows + 1] that the launch adds to, or null
  int tile_tokens = 0;
  bool gathers = false;             // gather_entries follows
  __nv_bfloat16* normed = nullptr;  // null, or gets bf16(x * expert_norm), without the norm's factor
  Routing out;
};
// logits = router (x * norm) * factor + bias in fp32. One launch.
cudaError_t route(const RouteParams& params, cudaStream_t stream);

// Places the entries of tokens that route left with places among their expert's (gathers), and to[entry] = from[token
// of the entry], [cols] bf16 each, whole 16 bytes.
cudaError_t gather_entries(const Routing& routing, int tokens, int taken, int cols, const __nv_bfloat16* from,
                           __nv_bfloat16* to, cudaStream_t stream);

// s = sum over the experts that the token takes, in their order, of share * y[entry]; x[token] = (x + norm(norm(s) +
// share * norm(dense))) * out_scale, in fp32, each norm and dense where they are there. next: see token_ops.h, its sums
// of squares in mixture_parts(p) parts of squares_stride.
struct MixParams {
  Routing routing = {};
  int tokens = 0, taken = 0, hidden = 0;  // taken 0: no experts, as after attention
  const float* y = nullptr;  // [entries][hidden]
  float* x = nullptr;        // [tokens][hidden]
  const float* dense = nullptr;        // [tokens][hidden] or null
  const float* dense_share = nullptr;  // [tokens] or null: 1
  const float *experts_norm = nullptr, *dense_norm = nullptr, *sum_norm = nullptr;  // [hidden] or null
  float experts_eps = 0, dense_eps = 0, sum_eps = 0;
  const float* out_scale = nullptr;    // [1] or null
  NextNorm next;
  int squares_stride = 0;

  bool norms() const { return experts_norm != nullptr || dense_norm != nullptr || sum_norm != nullptr; }
};
inline constexpr int kMostNormedHidden = 8192;  // values of a token where mix norms
inline int mixture_parts(const MixParams& p) { return p.norms() ? 1 : (p.hidden + 1023) / 1024; }
cudaError_t mix(const MixParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
