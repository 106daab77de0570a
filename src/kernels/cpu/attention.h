// Paged attention on the CPU: decode rows (one query, keys split over threads, all query heads of a KV head together) and
// extend rows (tiles of queries by chunks of keys), each with its own kernel, planned once per step and KV group.
//
// Scores are in log2 units. A partial is (max, sum, out) with out = sum_j 2^(s_j - max) v_j, not normalised; the identity
// is (-inf, 0, anything finite). Merge: M = max(max_i, sink); out = sum_i 2^(max_i - M) out_i / (sum_i 2^(max_i - M) sum_i
// + 2^(sink - M)); a partial with max -inf has weight 0. The sink joins once, there or in the extend epilogue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/batch.h"
#include "kernels/blocks.h"
#include "kernels/cpu/split_plan.h"
#include "kernels/cpu/thread_pool.h"

namespace tailrace::cpu {

inline constexpr int kTileRows = 144;  // queries x query heads of a KV head in one extend tile, unless one query has more

// One attention block in one step. q and out: [tokens][q_heads][head_dim] fp32, strides in floats between tokens.
struct AttentionParams {
  const BatchRow* rows = nullptr;
  KvGroupView kv{};
  int64_t layer = 0;
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  int32_t window = 0;
  float scale = 1.0f, softcap = 0.0f;
  const float* sinks = nullptr;
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Partials of decode splits, indexed by (split, q head). Strides are passed: groups differ in head_dim.
struct Partials {
  float* max = nullptr;       // [splits][q_heads]
  float* sum = nullptr;
  float* out = nullptr;       // [splits][q_heads][out_stride]
  int64_t out_stride = 0;     // floats; at least head_dim
};

// The kernels of one instruction set. `scratch` is one thread's, attention_thread_floats long, 64-byte aligned.
struct AttentionKernels {
  const char* name;
  // Partials of the query heads of kv_head over keys [begin, end) of a decode row -> max, sum [group], out [group][stride].
  void (*decode)(const AttentionParams& params, int32_t row, int32_t kv_head, KeyRange keys, float* max, float* sum,
                 float* out, int64_t out_stride, float* scratch);
  // Output of the queries [q_begin, q_end) (offsets in the row) for the query heads of kv_head.
  void (*extend)(const AttentionParams& params, int32_t row, int32_t kv_head, int32_t q_begin, int32_t q_end,
                 float* scratch);
};
const AttentionKernels& attention_kernels();  // follows isa_name()
const AttentionKernels* attention_avx512();   // null where not built in
const AttentionKernels* attention_avx2();
const AttentionKernels* attention_portable();

int64_t attention_thread_floats(int64_t head_dim, int64_t gqa_ratio);

// The work of one KV group in one step; the arrays belong to the caller, who sizes them at boot.
struct AttentionPlan {
  int32_t num_decode_rows = 0;     // rows that the decode kernel serves (0 when folded)
  int32_t num_rows = 0;
  int32_t num_splits = 0;
  bool merges = false;             // some row has several splits
  int32_t queries_per_tile = 0;
  int32_t* first_split = nullptr;  // [max_rows + 1]
  int32_t* first_tile = nullptr;   // [max_rows + 1]: extend row r owns tiles [first_tile[r], first_tile[r + 1])
};

struct PlanOptions {
  int32_t kv_heads = 1, gqa_ratio = 1, window = 0, threads = 1, forced_splits = 0;
  bool fold_decode = false;
};
void plan_attention(const Batch& batch, const PlanOptions& options, AttentionPlan* plan);

// All rows of the step: extend tiles and decode units side by side in one parallel region, then the merge.
// thread_scratch: threads x thread_stride floats.
void run_attention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionPlan& plan,
                   const AttentionParams& params, const Partials& partials, float* thread_scratch,
                   int64_t thread_stride);

// The merge of `count` partials, `step` entries apart in max and sum and step * out_stride floats apart in out.
void merge_partials(const float* max, const float* sum, const float* partial_out, int64_t count, int64_t step,
                    int64_t out_stride, const float* sink, int64_t head_dim, float* out);

}  // namespace tailrace::cpu
