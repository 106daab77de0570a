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

// Partials of decode splits, indexed by (split, q head), or of extend segments. Strides are passed: groups differ in head_dim.
struct Partials {
  float* max = nullptr;       // [splits][q_heads]
  float* sum = nullptr;
  float* out = nullptr;       // [splits][q_heads][out_stride]
  int64_t out_stride = 0;     // floats; at least head_dim
};

// Extend rows walk their keys in segments of absolute positions, each with a softmax of its own, folded in their order. So
// segments may be tasks of their own where queries are few, and every bit of the result stays. A context has at most
// kMaxSegments, so their partials do not grow with it.
inline constexpr int kMaxSegments = 16;
inline constexpr int64_t kMinSegmentKeys = 1024;
inline constexpr int kMaxSplitQueries = 32;  // of a step whose segments are tasks of their own
inline int64_t segment_keys(const KvGroupView& kv) {
  const int64_t share = (kv.table_stride * kv.block_size + kMaxSegments - 1) / kMaxSegments;
  return share <= kMinSegmentKeys ? kMinSegmentKeys : (share + kKeyChunk - 1) / kKeyChunk * kKeyChunk;
}

// One tile of queries of one KV head.
struct ExtendTask {
  int32_t row = 0, kv_head = 0;
  int32_t q_begin = 0, q_end = 0;  // offsets in the row
  int32_t segment = -1;            // -1: all its keys, to params.out; else this segment's partials
  int32_t first_query = 0;         // of the row, among the step's extend queries
  const Partials* partials = nullptr;

  int64_t partial_at(int64_t of_segment, int64_t query, int64_t head, int64_t q_heads) const {
    return (of_segment * kMaxSplitQueries + first_query + query) * q_heads + head;
  }
};

// The kernels of one instruction set. `scratch` is one thread's, attention_thread_floats long, 64-byte aligned.
struct AttentionKernels {
  const char* name;
  // Partials of all query heads over keys [begin, end) of a decode row -> max, sum [q_heads], out [q_heads][stride].
  void (*decode)(const AttentionParams& params, int32_t row, KeyRange keys, float* max, float* sum, float* out,
                 int64_t out_stride, float* scratch);
  void (*extend)(const AttentionParams& params, const ExtendTask& task, float* scratch);
  // Output of one query, all heads, from the partials of the row's segments [begin, end).
  void (*merge_segments)(const AttentionParams& params, const ExtendTask& row, int32_t query, KeyRange segments,
                         float* scratch);
};
const AttentionKernels& attention_kernels();  // follows isa_name()
const AttentionKernels* attention_avx512();   // null where not built in
const AttentionKernels* attention_avx2();
const AttentionKernels* attention_portable();

int64_t attention_thread_floats(int64_t head_dim, int64_t q_heads, int64_t gqa_ratio);

// The work of one KV group in one step; the arrays belong to the caller, who sizes them at boot.
struct AttentionPlan {
  int32_t num_decode_rows = 0;     // rows that the decode kernel serves (0 when folded)
  int32_t num_rows = 0;
  int32_t num_splits = 0;
  bool merges = false;             // some row has several splits
  int32_t queries_per_tile = 0;
  int32_t num_segments = 0;        // tasks a tile's keys are cut into; 0: a tile is one task
  int32_t* first_split = nullptr;  // [max_rows + 1]
  int32_t* first_tile = nullptr;   // [max_rows + 1]: extend row r owns tiles [first_tile[r], first_tile[r + 1])
};

struct PlanOptions {
  int32_t kv_heads = 1, gqa_ratio = 1, window = 0, threads = 1, forced_splits = 0;
  int64_t segment_keys = kMinSegmentKeys;
  bool fold_decode = false;
};
void plan_attention(const Batch& batch, const PlanOptions& options, AttentionPlan* plan);

// All rows of the step: extend tiles and decode units side by side in one parallel region, then the merges.
// segments: kMaxSegments x kMaxSplitQueries x q_heads entries. thread_scratch: threads x thread_stride floats.
void run_attention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionPlan& plan,
                   const AttentionParams& params, const Partials& partials, const Partials& segments,
                   float* thread_scratch, int64_t thread_stride);

// The merge of `count` partials, `step` entries apart in max and sum and step * out_stride floats apart in out.
void merge_partials(const float* max, const float* sum, const float* partial_out, int64_t count, int64_t step,
                    int64_t out_stride, const float* sink, int64_t head_dim, float* out);

}  // namespace tailrace::cpu
