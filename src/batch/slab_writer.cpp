#include "batch/slab_writer.h"

#include <algorithm>

#include "base/check.h"

namespace tailrace {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) & ~(kAlign - 1); }

// A bump allocator over the slab.
class Cursor {
 public:
  Cursor(std::byte* base, size_t capacity) : base_(base), capacity_(capacity) {}
  // Reserves room for `count` values of T; returns the byte offset.
  template <typename T>
  int64_t reserve(size_t count) {
    const size_t at = aligned(at_);
    at_ = at + sizeof(T) * count;
    CHECK_MSG(at_ <= capacity_, "a step's metadata outgrew its slab");
    return static_cast<int64_t>(at);
  }
  template <typename T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(base_ + offset);
  }
  template <typename T, typename Range>
  int64_t write(const Range& values) {
    const int64_t offset = reserve<T>(values.size());
    std::copy(values.begin(), values.end(), at<T>(offset));
    return offset;
  }
  size_t used() const { return at_; }

 private:
  std::byte* base_;
  size_t capacity_;
  size_t at_ = 0;
};

RowSampling row_sampling(const Request& request) {
  const SamplingParams& s = request.sampling;
  const auto prompt_len = static_cast<int32_t>(request.prompt_ids.size());
  return RowSampling{.temperature = s.temperature,
                     .top_p = s.top_p,
                     .min_p = s.min_p,
                     .repetition_penalty = s.repetition_penalty,
                     .presence_penalty = s.presence_penalty,
                     .frequency_penalty = s.frequency_penalty,
                     .top_k = s.top_k,
                     .num_top_logprobs = s.num_top_logprobs,
                     .seed = s.seed,
                     .choice_index = s.choice_index,
                     .prompt_len = prompt_len,
                     .num_bias = static_cast<int32_t>(s.logit_bias.size()),
                     .num_stop_ids = static_cast<int32_t>(request.stop_token_ids.size()),
                     .min_len = prompt_len + (request.constraint ? 0 : request.min_tokens),
                     .constrained = request.constraint ? 1 : 0};
}

void write_starts(const StepPlan& plan, Cursor& cursor, SlabHeader* header) {
  header->num_starts = static_cast<int32_t>(plan.starts.size());
  header->starts_at = cursor.reserve<SlabStart>(plan.starts.size());
  for (size_t i = 0; i < plan.starts.size(); ++i) {
    const Request& request = *plan.starts[i].request;
    const auto& bias = request.sampling.logit_bias;
    CHECK(bias.size() <= kMaxLogitBias && request.stop_token_ids.size() <= kMaxStopTokenIds);
    SlabStart start{.slot = plan.starts[i].slot, .sampling = row_sampling(request)};
    start.bias_ids_at = cursor.reserve<TokenId>(bias.size());
    start.bias_values_at = cursor.reserve<float>(bias.size());
    for (size_t b = 0; b < bias.size(); ++b) {
      cursor.at<TokenId>(start.bias_ids_at)[b] = bias[b].first;
      cursor.at<float>(start.bias_values_at)[b] = bias[b].second;
    }
    start.stop_ids_at = cursor.write<TokenId>(request.stop_token_ids);
    cursor.at<SlabStart>(header->starts_at)[i] = start;
  }
}

}  // namespace

size_t slab_capacity(const SlabLimits& limits) {
  const size_t rows = limits.max_rows;
  size_t bytes = aligned(sizeof(SlabHeader)) + aligned(sizeof(BatchRow) * rows);
  // Starts: state, bias and stop ids of every row at once.
  bytes += aligned(sizeof(SlabStart) * rows);
  bytes += rows * (aligned(sizeof(TokenId) * kMaxLogitBias) + aligned(sizeof(float) * kMaxLogitBias) +
                   aligned(sizeof(TokenId) * kMaxStopTokenIds));
  // Patches: a row may have a few per group and step (new blocks, re-pointed duplicates); values are bounded in total.
  const size_t patches = 4 * rows * limits.num_groups;
  bytes += aligned(sizeof(SlabBlockPatch) * patches) + patches * kAlign;
  bytes += limits.num_groups * aligned(sizeof(int32_t) * limits.max_patch_blocks);
  bytes += aligned(sizeof(SlabLogPatch) * 2 * rows) + 2 * rows * kAlign;
  bytes += aligned(sizeof(TokenId) * limits.max_log_patch_tokens);
  return bytes + 16 * kAlign;
}

size_t slab_rows_offset() { return aligned(sizeof(SlabHeader)); }

size_t write_slab(const StepPlan& plan, uint64_t launch, std::byte* slab, size_t capacity) {
  Cursor cursor(slab, capacity);
  auto* header = cursor.at<SlabHeader>(cursor.reserve<SlabHeader>(1));
  *header = SlabHeader{};
  header->launch = launch;
  header->num_rows = static_cast<int32_t>(plan.rows.size());
  header->num_decode_rows = plan.num_decode_rows;
  header->num_tokens = plan.num_tokens;

  header->rows_at = cursor.reserve<BatchRow>(plan.rows.size());
  CHECK(header->rows_at == static_cast<int64_t>(slab_rows_offset()));
  auto* rows = cursor.at<BatchRow>(header->rows_at);
  int32_t q_start = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    rows[i] = BatchRow{row.slot,        q_start,       row.q_len, row.kv_len(), row.samples ? 1 : 0,
                       row.state_from, row.state_save};
    q_start += row.q_len;
  }
  CHECK(q_start == plan.num_tokens);

  write_starts(plan, cursor, header);

  header->num_block_patches = static_cast<int32_t>(plan.block_patches.size());
  header->block_patches_at = cursor.reserve<SlabBlockPatch>(plan.block_patches.size());
  for (size_t i = 0; i < plan.block_patches.size(); ++i) {
    const BlockPatch& p = plan.block_patches[i];
    const int64_t values_at = cursor.write<int32_t>(p.blocks);
    cursor.at<SlabBlockPatch>(header->block_patches_at)[i] = {
        p.group, p.slot, p.first_index, static_cast<int32_t>(p.blocks.size()), values_at};
  }

  header->num_log_patches = static_cast<int32_t>(plan.log_patches.size());
  header->log_patches_at = cursor.reserve<SlabLogPatch>(plan.log_patches.size());
  for (size_t i = 0; i < plan.log_patches.size(); ++i) {
    const LogPatch& p = plan.log_patches[i];
    const int64_t values_at = cursor.write<TokenId>(p.ids);
    cursor.at<SlabLogPatch>(header->log_patches_at)[i] = {p.slot, p.first, static_cast<int32_t>(p.ids.size()), 0,
                                                          values_at};
  }
  header->bytes = static_cast<int64_t>(cursor.used());
  return cursor.used();
}

}  // namespace tailrace
