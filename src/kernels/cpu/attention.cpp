#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/test_fault.h"
#include "kernels/cpu/linear.h"

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

  int64_t out_stride() const { return partials.out_stride; }
  int32_t group() const { return params.q_heads / params.kv_heads; }

  void extend_tile(int64_t task, float* scratch) const {
    const auto kv_head = static_cast<int32_t>(task % params.kv_heads);
    const auto tile = static_cast<int32_t>(task / params.kv_heads);
    const int32_t row = owner(plan.first_tile, plan.num_decode_rows, plan.num_rows, tile);
    const int32_t begin = (tile - plan.first_tile[row]) * plan.queries_per_tile;
    const int32_t end = std::min(params.rows[row].q_len, begin + plan.queries_per_tile);
    kernels.extend(params, row, kv_head, begin, end, scratch);
  }

  void decode_unit(int64_t task, float* scratch) const {
    const auto kv_head = static_cast<int32_t>(task % params.kv_heads);
    const auto split = static_cast<int32_t>(task / params.kv_heads);
    const int32_t row = owner(plan.first_split, 0, plan.num_decode_rows, split);
    const int32_t count = plan.first_split[row + 1] - plan.first_split[row];
    const KeyRange keys = split_range(params.rows[row].kv_len, params.window, count, split - plan.first_split[row]);
    if (test_fault(Fault::kMergeEmptySplit) && keys.begin == keys.end) return;
    const int64_t at = int64_t{split} * params.q_heads + kv_head * group();
    kernels.decode(params, row, kv_head, keys, partials.max + at, partials.sum + at, partials.out + at * out_stride(),
                   out_stride(), scratch);
    if (count == 1) merge(row, kv_head * group(), group());
  }

  void merge(int32_t row, int32_t head_begin, int32_t heads) const {
    const int32_t first = plan.first_split[row], count = plan.first_split[row + 1] - first;
    float* out = params.out + params.rows[row].q_start * params.out_stride;
    for (int32_t h = head_begin; h < head_begin + heads; ++h) {
      const int64_t at = int64_t{first} * params.q_heads + h;
      merge_partials(partials.max + at, partials.sum + at, partials.out + at * out_stride(), count, params.q_heads,
                     params.q_heads * out_stride(), params.sinks != nullptr ? params.sinks + h : nullptr,
                     params.head_dim, out + int64_t{h} * params.head_dim);
    }
  }

  void merge_row(int32_t row) const {
    if (plan.first_split[row + 1] - plan.first_split[row] > 1) merge(row, 0, params.q_heads);
  }
};

}  // namespace

const AttentionKernels& attention_kernels() {
  const char* isa = isa_name();
  if (std::strncmp(isa, "avx512", 6) == 0 && attention_avx512() != nullptr) return *attention_avx512();
  if (std::strncmp(isa, "portable", 8) != 0 && attention_avx2() != nullptr) return *attention_avx2();
  return *attention_portable();
}

int64_t attention_thread_floats(int64_t head_dim, int64_t gqa_ratio) {
  const int64_t rows = std::max<int64_t>(kTileRows, gqa_ratio);
  constexpr int64_t kLanes = 16, kBlockRows = 24;  // the most of any instruction set
  const int64_t floats = rows * (2 * head_dim + kLanes + 1) + (kBlockRows + 2 * head_dim) * kKeyChunk;
  return (floats + 15) / 16 * 16;
}

void plan_attention(const Batch& batch, const PlanOptions& options, AttentionPlan* plan) {
  plan->num_rows = batch.num_rows;
  const bool mixed = batch.num_decode_rows < batch.num_rows;
  plan->num_decode_rows = options.fold_decode && mixed ? 0 : batch.num_decode_rows;
  plan->num_splits = plan_splits({.rows = batch.rows, .num_decode_rows = plan->num_decode_rows, .window = options.window,
                                  .kv_heads = options.kv_heads, .threads = options.threads,
                                  .forced = options.forced_splits},
                                 plan->first_split);
  plan->merges = false;
  for (int32_t r = 0; r < plan->num_decode_rows; ++r) plan->merges |= plan->first_split[r + 1] - plan->first_split[r] > 1;
  int64_t queries = 0;
  for (int32_t r = plan->num_decode_rows; r < batch.num_rows; ++r) queries += batch.rows[r].q_len;
  // Full tiles read a chunk of keys most seldom; smaller ones where there are too few to share out.
  int32_t per_tile = std::max(1, kTileRows / options.gqa_ratio);
  while (per_tile > 8 && queries / per_tile * options.kv_heads < int64_t{4} * options.threads) per_tile /= 2;
  plan->queries_per_tile = per_tile;
  plan->first_tile[plan->num_decode_rows] = 0;
  for (int32_t r = plan->num_decode_rows; r < batch.num_rows; ++r) {
    const int32_t q_len = idle(batch.rows[r]) ? 0 : batch.rows[r].q_len;
    plan->first_tile[r + 1] = plan->first_tile[r] + (q_len + per_tile - 1) / per_tile;
  }
}

void run_attention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionPlan& plan,
                   const AttentionParams& params, const Partials& partials, float* thread_scratch,
                   int64_t thread_stride) {
  const Run run{kernels, plan, params, partials};
  const int64_t tiles = int64_t{plan.first_tile[plan.num_rows]} * params.kv_heads;
  const int64_t units = int64_t{plan.num_splits} * params.kv_heads;
  pool.parallel_for(tiles + units, [&](int64_t task, int thread) {
    float* scratch = thread_scratch + thread * thread_stride;
    if (task < tiles) {
      run.extend_tile(tiles - 1 - task, scratch);  // a row's last tiles see most keys: longest first
    } else {
      run.decode_unit(task - tiles, scratch);
    }
  });
  if (!plan.merges) return;
  if (int64_t{plan.num_splits} * params.q_heads * params.head_dim <= kSerialMerge) {
    for (int32_t r = 0; r < plan.num_decode_rows; ++r) run.merge_row(r);
  } else {
    pool.parallel_for(plan.num_decode_rows, [&](int64_t row, int) { run.merge_row(static_cast<int32_t>(row)); });
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
