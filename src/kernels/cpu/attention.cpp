#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/test_fault.h"
#include "kernels/cpu/linear.h"
#include "kernels/kv_address.h"

namespace tailrace::cpu {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr int64_t kSerialMerge = 1 << 15;  // floats that one thread merges faster than a parallel region starts

// The row that owns `index` of a cumulative array over rows [begin, end).
int32_t owner(const int32_t* first, int32_t begin, int32_t end, int32_t index) {
  return static_cast<int32_t>(std::upper_bound(first + begin, first + end + 1, index) - first) - 1;
}

struct Run {
  const AttentionKernels& kernels;
  const AttentionPlan& plan;
  const AttentionParams& params;
  const Partials& partials;
  const Partials& segments;

  int64_t out_stride() const { return partials.out_stride; }

  int32_t first_query(int32_t row) const { return params.rows[row].q_start - params.rows[plan.num_decode_rows].q_start; }
  // Segments that the queries [begin, end) of a row see something of.
  KeyRange segments_of(int32_t row, int32_t begin, int32_t end) const {
    const BatchRow& r = params.rows[row];
    const int64_t length = segment_keys(params.kv), position = r.kv_len - r.q_len + begin;
    return {first_visible(position, params.window) / length, (position + end - begin - 1) / length + 1};
  }

  void extend_tile(int64_t index, float* scratch) const {
    const int32_t parts = std::max(1, plan.num_segments);
    const auto segment = static_cast<int32_t>(index % parts);
    const auto tile = static_cast<int32_t>(index / parts / params.kv_heads);
    ExtendTask task{.row = owner(plan.first_tile, plan.num_decode_rows, plan.num_rows, tile),
                    .kv_head = static_cast<int32_t>(index / parts % params.kv_heads)};
    task.q_begin = (tile - plan.first_tile[task.row]) * plan.queries_per_tile;
    task.q_end = std::min(params.rows[task.row].q_len, task.q_begin + plan.queries_per_tile);
    if (plan.num_segments > 0) {
      const KeyRange seen = segments_of(task.row, task.q_begin, task.q_end);
      if (segment < seen.begin || segment >= seen.end) return;
      task.segment = segment;
      task.first_query = first_query(task.row);
      task.partials = &segments;
    }
    kernels.extend(params, task, scratch);
  }

  int32_t num_queries() const {
    int32_t count = 0;
    for (int32_t r = plan.num_decode_rows; r < plan.num_rows; ++r) count += params.rows[r].q_len;
    return count;
  }

  // `query`: among the step's extend queries.
  void merge_query(int32_t query, float* scratch) const {
    int32_t row = plan.num_decode_rows;
    while (query >= params.rows[row].q_len) query -= params.rows[row++].q_len;
    if (plan.first_tile[row + 1] == plan.first_tile[row]) return;  // idle
    const int32_t tile_begin = query / plan.queries_per_tile * plan.queries_per_tile;
    const int32_t tile_end = std::min(params.rows[row].q_len, tile_begin + plan.queries_per_tile);
    const ExtendTask task{.row = row, .first_query = first_query(row), .partials = &segments};
    kernels.merge_segments(params, task, query, segments_of(row, tile_begin, tile_end), scratch);
  }

  void decode_unit(int32_t split, float* scratch) const {
    const int32_t row = owner(plan.first_split, 0, plan.num_decode_rows, split);
    const int32_t count = plan.first_split[row + 1] - plan.first_split[row];
    const KeyRange keys = split_range(params.rows[row].kv_len, params.window, count, split - plan.first_split[row]);
    if (test_fault(Fault::kMergeEmptySplit) && keys.begin == keys.end) return;
    const int64_t at = int64_t{split} * params.q_heads;
    kernels.decode(params, row, keys, partials.max + at, partials.sum + at, partials.out + at * out_stride(), out_stride(),
                   scratch);
    if (count == 1) merge(row);
  }

  void merge(int32_t row) const {
    const int32_t first = plan.first_split[row], count = plan.first_split[row + 1] - first;
    float* out = params.out + params.rows[row].q_start * params.out_stride;
    for (int32_t h = 0; h < params.q_heads; ++h) {
      const int64_t at = int64_t{first} * params.q_heads + h;
      merge_partials(partials.max + at, partials.sum + at, partials.out + at * out_stride(), count, params.q_heads,
                     params.q_heads * out_stride(), params.sinks != nullptr ? params.sinks + h : nullptr,
                     params.head_dim, out + int64_t{h} * params.head_dim);
    }
  }

  void merge_row(int32_t row) const {
    if (plan.first_split[row + 1] - plan.first_split[row] > 1) merge(row);
  }
};

}  // namespace

const AttentionKernels& attention_kernels() {
  const char* isa = isa_name();
  if (std::strncmp(isa, "avx512", 6) == 0 && attention_avx512() != nullptr) return *attention_avx512();
  if (std::strncmp(isa, "portable", 8) != 0 && attention_avx2() != nullptr) return *attention_avx2();
  return *attention_portable();
}

int64_t attention_thread_floats(int64_t head_dim, int64_t q_heads, int64_t gqa_ratio) {
  const int64_t rows = std::max<int64_t>(kTileRows, gqa_ratio);
  constexpr int64_t kLanes = 16, kBlockRows = 24;  // the most of any instruction set
  const int64_t widened = kKeyChunk * head_dim;  // K and V of a chunk as bf16, from a pool of e4m3
  const int64_t extend = rows * (3 * head_dim + kLanes + 3) + (kBlockRows + 2 * head_dim) * kKeyChunk + widened;
  const int64_t decode = q_heads * (head_dim + kLanes) + widened;
  return (std::max(extend, decode) + 15) / 16 * 16;
}

void plan_attention(const Batch& batch, const PlanOptions& options, AttentionPlan* plan) {
  plan->num_rows = batch.num_rows;
  const bool mixed = batch.num_decode_rows < batch.num_rows;
  plan->num_decode_rows = options.fold_decode && mixed ? 0 : batch.num_decode_rows;
  plan->num_splits = plan_splits({.rows = batch.rows, .num_decode_rows = plan->num_decode_rows, .window = options.window,
                                  .threads = options.threads, .forced = options.forced_splits},
                                 plan->first_split);
  plan->merges = false;
  for (int32_t r = 0; r < plan->num_decode_rows; ++r) plan->merges |= plan->first_split[r + 1] - plan->first_split[r] > 1;
  int64_t queries = 0, longest = 0;
  for (int32_t r = plan->num_decode_rows; r < batch.num_rows; ++r) {
    queries += batch.rows[r].q_len;
    longest = std::max<int64_t>(longest, batch.rows[r].kv_len);
  }
  // Full tiles read a chunk of keys most seldom; smaller ones, or tiles cut along their keys, where there are too few to share out.
  int32_t per_tile = std::max(1, kTileRows / options.gqa_ratio);
  const auto too_few = [&](int32_t size) { return queries / size * options.kv_heads < int64_t{4} * options.threads; };
  const int64_t segments = (longest + options.segment_keys - 1) / options.segment_keys;
  plan->num_segments =
      options.threads > 1 && queries <= kMaxSplitQueries && segments > 1 && too_few(per_tile) ? static_cast<int32_t>(segments) : 0;
  while (plan->num_segments == 0 && per_tile > 8 && too_few(per_tile)) per_tile /= 2;
  plan->queries_per_tile = per_tile;
  plan->first_tile[plan->num_decode_rows] = 0;
  for (int32_t r = plan->num_decode_rows; r < batch.num_rows; ++r) {
    const int32_t q_len = idle(batch.rows[r]) ? 0 : batch.rows[r].q_len;
    plan->first_tile[r + 1] = plan->first_tile[r] + (q_len + per_tile - 1) / per_tile;
  }
}

void run_attention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionPlan& plan,
                   const AttentionParams& params, const Partials& partials, const Partials& segments,
                   float* thread_scratch, int64_t thread_stride) {
  const Run run{kernels, plan, params, partials, segments};
  const int64_t tiles = int64_t{plan.first_tile[plan.num_rows]} * params.kv_heads * std::max(1, plan.num_segments);
  pool.parallel_for(tiles + plan.num_splits, [&](int64_t task, int thread) {
    float* scratch = thread_scratch + thread * thread_stride;
    if (task < tiles) {
      run.extend_tile(tiles - 1 - task, scratch);  // a row's last tiles see most keys: longest first
    } else {
      run.decode_unit(static_cast<int32_t>(task - tiles), scratch);
    }
  });
  const auto merge_all = [&](int32_t count, int64_t num_partials, const auto& merge) {
    if (num_partials * params.q_heads * params.head_dim > kSerialMerge) return pool.parallel_for(count, merge);
    for (int32_t i = 0; i < count; ++i) merge(i, 0);
  };
  if (plan.num_segments > 0) {
    const int32_t queries = run.num_queries();
    merge_all(queries, int64_t{queries} * plan.num_segments, [&](int64_t query, int thread) {
      run.merge_query(static_cast<int32_t>(query), thread_scratch + thread * thread_stride);
    });
  }
  if (plan.merges) {
    merge_all(plan.num_decode_rows, plan.num_splits, [&](int64_t row, int) { run.merge_row(static_cast<int32_t>(row)); });
  }
}

void merge_partials(const float* max, const float* sum, const float* partial_out, int64_t count, int64_t step,
                    int64_t out_stride, const float* sink, int64_t head_dim, float* out) {
  float top = sink != nullptr ? *sink * kLog2e : -HUGE_VALF;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, max[i * step]);
  std::fill_n(out, head_dim, 0.0f);
  if (top == -HUGE_VALF) return;  // only where scores are not numbers: a query sees itself
  float denominator = sink != nullptr ? std::exp2(*sink * kLog2e - top) : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = std::exp2(max[i * step] - top);  // 0 for the identity
    denominator += weight * sum[i * step];
    if (weight == 0) continue;
    const float* from = partial_out + i * out_stride;
    for (int64_t d = 0; d < head_dim; ++d) out[d] += weight * from[d];
  }
  const float inverse = 1.0f / denominator;
  for (int64_t d = 0; d < head_dim; ++d) out[d] *= inverse;
}

}  // namespace tailrace::cpu
