// Step: what the CPU blocks share while one batch runs, and StepScratch: every array they work in, claimed at boot.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/batch.h"
#include "kernels/backend.h"
#include "kernels/block_widths.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/token_ops.h"

namespace tailrace::cpu {

inline constexpr int kNumInputKinds = 3;

// What a model needs of scratch beyond its widths, found once from the block list.
struct StepShape {
  BlockWidths widths;
  StepLimits limits;
  int threads = 1;
  int forced_splits = 0;
  bool has_post_norm = false;
  int64_t delta_thread_floats = 0;
  bool has_dense_branch = false;                       // beside a mixture's experts
  int64_t input_bytes_per_token[kNumInputKinds] = {};  // the widest activation of each kind
  std::vector<Rope> ropes;                             // one per distinct id
  int64_t expert_input_bytes[kNumInputKinds] = {};     // the same of what experts multiply
  struct Group {                                       // geometry of a KV group's attention blocks
    int32_t q_heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  };
  Group groups[kMaxKvGroups];
  int num_groups = 0;
};

// Errors name what the CPU backend cannot compute or what is inconsistent in the list.
Expected<StepShape> step_shape(const BlockList& blocks, const StepLimits& limits, const BackendOptions& options,
                               int threads);

// Tokens of a mixture at a time: bounds its scratch, and is many enough that reading the experts again costs little.
inline constexpr int64_t kMoeTokens = 512;

// Of up to kMoeTokens tokens. An entry is a token at one of its experts; entries are ordered by expert.
struct MoeScratch {
  float* logits;                      // [tokens, experts] of the router
  float* weights;                     // [tokens, top_k]
  int32_t* ids;                       // [tokens, top_k]: experts, largest logit first
  int32_t* entry;                     // [tokens, top_k]: where that entry lies
  int32_t* token;                     // [entries]
  int32_t* first;                     // [experts + 1]: entries of each expert
  int32_t* chunks;                    // [chunks, 3]: expert, first entry, end
  std::byte* inputs[kNumInputKinds];  // [entries]: what gate and up multiply, then what down does
  float* gated;                       // [entries, expert_rows]
  float* y;                           // [entries, hidden]
  float* dense;                       // [tokens, hidden] of the branch beside the experts
  float* share;                       // [tokens]: logits of its sigmoid
};

struct StepScratch {
  float* x;              // [tokens, hidden] residual stream
  float* qkv;            // [tokens, qkv]
  float* attended;       // [tokens, q]
  float* q_gate;         // [tokens, gate]
  float* gated;          // [tokens, intermediate]
  float* y;              // [tokens, hidden] where a post norm needs a whole row; else null
  std::byte* inputs[kNumInputKinds];  // activations in the form that a weight format multiplies
  MoeScratch moe;
  float *delta_qkv, *delta_z, *delta_out;  // [tokens, channels], [tokens, v_heads * v_dim] twice
  float *delta_b, *delta_a;                // [tokens, v_heads]
  float* cos_sin;        // [ropes][tokens][rotary_dim]: cos, then sin
  int64_t rope_stride;   // floats from one rope's table to the next
  int32_t* token_row;    // [tokens]
  float* logits;         // [rows, vocab]
  int32_t* sampling;     // [rows]: the rows that sample
  Partials partials;     // of decode splits; out_stride is set per group
  Partials segments;     // of extend segments; none where one thread walks them all
  int32_t* first_split[kMaxKvGroups];
  int32_t* first_tile[kMaxKvGroups];
  float* thread_floats;  // [threads][thread_stride]: attention tiles, product tiles, one normed row
  int64_t thread_stride;
  std::byte* samplers;   // [threads][sampler_stride]
  int64_t sampler_stride;
  size_t bytes;

  StepScratch(void* base, const StepShape& shape);
};

// One batch on its way through the blocks.
struct Step {
  ThreadPool& pool;
  const StepShape& shape;
  const StepScratch& scratch;
  const AttentionKernels& attention;
  const TokenKernels& ops;
  const Batch& batch;
  AttentionPlan plans[kMaxKvGroups];
  bool fold_decode = false;
  ExpertCounts* experts = nullptr;  // counts what the step reads of them, or null

  int64_t position(int64_t token) const {
    const BatchRow& row = batch.rows[scratch.token_row[token]];
    return row.kv_len - row.q_len + (token - row.q_start);
  }
  float* thread_floats(int thread) const { return scratch.thread_floats + thread * scratch.thread_stride; }

  // Calls fn(token, thread) for all tokens: on the caller alone where `width` values a token are too little to share.
  template <typename F>
  void for_tokens(int64_t tokens, int64_t width, const F& fn) const {
    constexpr int64_t kSerialValues = 8192, kChunk = 16;
    if (tokens * width <= kSerialValues) {
      for (int64_t t = 0; t < tokens; ++t) fn(t, 0);
      return;
    }
    const int64_t chunk = tokens >= kChunk * 2 * pool.size() ? kChunk : 1;
    pool.parallel_for((tokens + chunk - 1) / chunk, [&](int64_t task, int thread) {
      const int64_t end = std::min(tokens, (task + 1) * chunk);
      for (int64_t t = task * chunk; t < end; ++t) fn(t, thread);
    });
  }
};

// Rows, plans and rope tables of the batch; reads the rows, so it runs in stream order.
void begin_step(Step& step);

void run_block(const Step& step, const EmbedBlock& block);
void run_block(const Step& step, const AttnInBlock& block);
void run_block(const Step& step, const AttentionBlock& block);
void run_block(const Step& step, const AttnOutBlock& block);
void run_block(const Step& step, const GatedDeltaBlock& block);
void run_block(const Step& step, const MlpBlock& block);
void run_block(const Step& step, const MoeBlock& block);
void run_block(const Step& step, const HeadBlock& block);

// Samples the rows that sample, in parallel: ids to batch.sampled and to the token log.
void sample_step(const Step& step);

}  // namespace tailrace::cpu
