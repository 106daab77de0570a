// CudaScratch: every array that the CUDA backend works in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_extend.h"
#include "kernels/cuda/cuda_shape.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/linear_wide.h"
#include "kernels/cuda/sampler.h"
#include "kernels/cuda/token_ops.h"

namespace tailrace::cuda {

struct CudaScratch {
  StepState* state;
  float* x;                    // [tokens][hidden] residual stream
  __nv_bfloat16* normed;       // [tokens][hidden] input of projections (see LinearParams about who normalises)
  float* squares;              // [parts][tokens], see LinearParams
  __nv_bfloat16* ordered;      // [tokens][cols] a projection's input in the order of its weights' form, of as many
                               // columns as own kernels take, or as wide as hidden and what attention gives
  float* qkv;                  // [tokens][qkv]
  __nv_bfloat16* q;            // [tokens][q]
  __nv_bfloat16* attended;     // [tokens][q], or what linear attention gives
  float* attention_gate;       // [tokens][gate]
  __nv_bfloat16* gate_up;      // [tokens][2 * intermediate], see GateParams
  __nv_bfloat16* gated;        // [tokens][intermediate]
  float* y;                    // [tokens][hidden] where a post norm needs a whole row; else null
  __nv_bfloat16* last;         // [rows][hidden] input of the head
  float* logits;               // [rows][logits_stride]
  __half* widened;             // a matrix
  void* gemm;
  void* sampler;
  struct Group {
    DecodePlan* plan;
    float* partial_out;
    float2* partial_ml;
    unsigned long long* done;
    int32_t* tile_start;       // [rows + 1]
  } groups[kMaxKvGroups];
  float* delta_in;             // [tokens][channels + values] q | k | v | z of linear attention
  float* delta_ba;             // [tokens][2 * heads]
  DeltaScratch delta;
  ExpertScratch experts;       // x and normed are those above
  char* extend_partial;        // parts of extend tiles, of whichever layer runs
  unsigned long long* arrivals;  // [4 per tile that is cut]
  size_t bytes;

  CudaScratch(void* base, const CudaShape& s) {
    ArenaCursor arena(base);
    const auto take = [&]<typename T>(T*& at, int64_t count) {  // aligned to 256 bytes
      at = reinterpret_cast<T*>(arena.take<std::byte>((count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256));
    };
    const int64_t tokens = s.limits.max_step_tokens, rows = s.limits.max_rows;
    const BlockWidths& w = s.widths;
    take(state, 1);
    take(x, tokens * w.hidden);
    take(normed, tokens * w.hidden);
    const int64_t wide_tokens = std::min<int64_t>(tokens, kMostWideTokens);
    // Tiles of 128 rows.
    take(squares, std::max(int64_t{kMaxSquareParts} * kMaxLinearTokens, (w.hidden + 127) / 128 * wide_tokens));
    take(ordered, s.has_halves ? std::max(wide_tokens * w.max_cols, tokens * std::max({w.q, w.hidden, w.delta_values})) : 0);
    take(qkv, tokens * w.qkv);
    take(q, tokens * w.q);
    take(attended, tokens * std::max(w.q, w.delta_values));
    take(attention_gate, tokens * w.gate);
    take(gate_up, tokens * 2 * w.intermediate);
    take(gated, tokens * w.intermediate);
    y = nullptr;
    if (s.has_post_norm) take(y, tokens * w.hidden);
    take(last, rows * w.hidden);
    take(logits, rows * s.logits_stride);
    take(widened, s.widened);
    auto* bytes_at = static_cast<std::byte*>(nullptr);
    take(bytes_at, static_cast<int64_t>(kGemmWorkspace));
    gemm = bytes_at;
    take(bytes_at, static_cast<int64_t>(sampler_scratch_bytes(s.limits.max_rows, s.limits.vocab)));
    sampler = bytes_at;
    for (int g = 0; g < s.num_groups; ++g) {
      const GroupShape& shape = s.groups[g];
      take(bytes_at, static_cast<int64_t>(decode_plan_bytes(shape.max_chunks)));
      groups[g].plan = reinterpret_cast<DecodePlan*>(bytes_at);
      take(groups[g].partial_out,
           static_cast<int64_t>(decode_partial_out_bytes(shape.head_dim, shape.max_chunks) / sizeof(float)));
      take(groups[g].partial_ml, int64_t{shape.max_chunks} * 16);
      take(groups[g].done, shape.max_chunks);
      take(groups[g].tile_start, rows + 1);
    }
    take(delta_in, tokens * (w.delta_channels + w.delta_values)), take(delta_ba, tokens * 2 * w.delta_heads);
    take(delta.mixed, tokens * w.delta_channels), take(delta.w, tokens * w.delta_values);
    take(delta.p, tokens * w.delta_heads * kDeltaChunk), take(delta.decay, tokens * w.delta_heads);
    take_experts(take, s);
    size_t partial_bytes = 0;
    for (int g = 0; g < s.num_groups; ++g) {
      if (s.groups[g].window == 0)
        partial_bytes = std::max(partial_bytes, extend_partial_bytes(s.groups[g].head_dim, s.max_extend_parts));
    }
    take(extend_partial, static_cast<int64_t>(partial_bytes));
    take(arrivals, 4 * s.max_extend_parts / 2);  // a tile that is cut has two parts at least
    bytes = arena.bytes();
  }

 private:
  template <typename Take>
  void take_experts(const Take& take, const CudaShape& s) {
    const BlockWidths& w = s.widths;
    const int64_t tokens = w.experts > 0 ? s.limits.max_step_tokens : 0, entries = tokens * w.taken;
    experts.x = x, experts.normed = normed;
    Routing& r = experts.routing;
    take(r.logits, tokens * w.experts);
    take(r.ids, entries), take(r.shares, entries), take(r.entry, entries), take(r.token, entries);
    take(r.factor, tokens);
    take(r.tiles, most_expert_tiles(w.experts, entries, few_tile_tokens(1)));
    take(r.counts, w.experts > 0 ? kRoutingCounts : 0), take(r.arrived, tokens);
    take(experts.gated, entries * w.expert_rows);
    take(experts.y, entries * w.hidden);
    take(r.dense_share, tokens);
    const int64_t beside = w.intermediate > 0 ? tokens * w.hidden : 0;  // a branch beside the experts
    take(experts.dense_in, beside), take(experts.dense, beside);
    experts.gathered = reinterpret_cast<__nv_bfloat16*>(experts.y);
  }
};

}  // namespace tailrace::cuda
