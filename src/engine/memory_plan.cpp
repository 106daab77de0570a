#include "engine/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "batch/staging.h"

namespace tailrace {
namespace {

constexpr int kAheadTokens = 64;  // SchedulerConfig::blocks_ahead_tokens

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks that a window group needs for `rows` running sequences, chunks in prefill and its share of the tree.
int64_t window_blocks(const KvGroupSpec& group, const EngineLimits& limits) {
  const int64_t per_row = div_up(group.window - 1 + kAheadTokens, limits.block_size) + 2;
  const int64_t prefill = 2 * div_up(limits.chunk_size, limits.block_size);  // this step's chunk and the one in flight
  const auto needed = static_cast<double>(limits.max_rows * per_row + prefill);
  return static_cast<int64_t>(needed * (1.0 + (limits.prefix_cache ? limits.window_tree_share : 0.0))) + 1;
}

// Checkpoints of recurrent states: a few a row, as long as they take no more than a share of the `room` beside the
// rows' own (none: unknown).
int32_t num_checkpoints(const StateSpec& states, const EngineLimits& limits, std::optional<size_t> room) {
  constexpr int32_t kPerRow = 4;
  constexpr double kShare = 0.15;
  if (states.num_layers == 0 || !limits.prefix_cache) return 0;
  if (limits.max_checkpoints >= 0) return limits.max_checkpoints;
  const int32_t wanted = kPerRow * limits.max_rows;
  if (!room) return wanted;
  const double affordable = kShare * static_cast<double>(*room) / static_cast<double>(states.bytes());
  return static_cast<int32_t>(std::min<double>(wanted, affordable));
}

struct Fixed {
  size_t tables = 0, row_state = 0, masks = 0, staging_device = 0, staging_pinned = 0, scratch = 0;
  size_t total() const { return tables + row_state + masks + staging_device + staging_pinned + scratch; }
};

// Fails where the backend cannot serve the model at these limits.
Expected<Fixed> fixed_bytes(const Model& model, const Backend& backend, const MemoryPlan& plan) {
  Fixed f;
  const int64_t rows = plan.step.max_rows + 1;  // and the padding of captured graphs
  const int64_t stride = div_up(plan.context_length, plan.kv.block_size) + 1;
  f.tables = sizeof(int32_t) * rows * stride * model.groups.size();
  f.row_state = rows * (sizeof(TokenId) * (plan.context_length + 1) + sizeof(RowSampling) + sizeof(BatchRow) +
                        kMaxLogitBias * (sizeof(TokenId) + sizeof(float)) + kMaxStopTokenIds * sizeof(TokenId) + sizeof(*RowStateView::mask_gate));
  f.masks = rows * sizeof(int32_t) * (mask_words(plan.step.vocab) + kMaskLenStride);
  f.staging_device = Staging::device_bytes(slab_capacity(plan.slab));
  f.staging_pinned = Staging::pinned_bytes(slab_capacity(plan.slab), plan.step.max_rows);
  const auto scratch = backend.scratch_bytes(model.blocks, plan.step);
  if (!scratch) return fail(scratch.error());
  f.scratch = *scratch;
  return f;
}

void set_shapes(const Model& model, const EngineLimits& limits, int64_t vocab, MemoryPlan* plan) {
  plan->max_step_tokens = limits.chunk_size + limits.max_rows;
  plan->step = {.max_rows = limits.max_rows,
                .max_step_tokens = plan->max_step_tokens,
                .context_length = plan->context_length,
                .vocab = vocab};
  plan->slab = {.max_rows = limits.max_rows,
                .num_groups = static_cast<int32_t>(model.groups.size()),
                .max_log_patch_tokens = int64_t{plan->context_length} + plan->max_step_tokens,
                .max_patch_blocks = limits.max_rows * (div_up(plan->context_length, limits.block_size) + 1)};
}

std::string mib(size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

// What to lower: the chunk where a common one would do with less than half of the fixed memory, else what else sizes it.
std::string remedy(const Model& model, const Backend& backend, const EngineLimits& limits, const MemoryPlan& plan,
                   size_t fixed, size_t lacking) {
  if (lacking > 0) {
    return "the weights alone are " + mib(lacking) + " too large: take a smaller model or format, or more memory";
  }
  constexpr int32_t kCommonChunk = 512;
  EngineLimits common = limits;
  common.chunk_size = std::min(limits.chunk_size, kCommonChunk);
  MemoryPlan smaller = plan;
  set_shapes(model, common, plan.step.vocab, &smaller);
  const size_t without = fixed_bytes(model, backend, smaller)->total();  // served at more, so at less
  if (without < fixed / 2) {
    return "lower --chunked-prefill-size " + std::to_string(limits.chunk_size) + ", which takes " + mib(fixed - without) +
           " of the fixed memory (" + mib(without) + " at " + std::to_string(common.chunk_size) + ")";
  }
  return "lower --context-length, --max-running-requests or --max-total-tokens, or raise --mem-fraction-static";
}

void write_ledger(const Model& model, const Backend& backend, size_t weight_bytes, const Fixed& fixed,
                  MemoryPlan* plan) {
  auto& ledger = plan->ledger;
  ledger.push_back({"weights", weight_bytes, "packed in their stored formats"});
  for (size_t g = 0; g < model.groups.size(); ++g) {
    const KvGroupSpec& group = model.groups[g];
    const int64_t blocks = plan->kv.groups[g].num_blocks;
    const size_t bytes = kv_bytes_per_token(group, backend) * blocks * plan->kv.block_size;
    const std::string kind = group.window ? "window " + std::to_string(group.window) : "full";
    ledger.push_back({"KV " + kind, bytes,
                      std::to_string(group.num_layers) + " layers, " + std::to_string(blocks) + " blocks of " +
                          std::to_string(plan->kv.block_size) + " tokens, " +
                          std::to_string(kv_bytes_per_token(group, backend)) + " B per token, " +
                          format_traits(group.format).name});
  }
  const std::string rows = std::to_string(plan->step.max_rows) + " rows";
  if (model.states.num_layers > 0) {
    const size_t bytes = model.states.bytes();
    const std::string each = std::to_string(model.states.num_layers) + " recurrent layers, " + mib(bytes) + " each";
    ledger.push_back({"states", bytes * plan->step.max_rows, std::to_string(plan->step.max_rows) + " rows, " + each});
    const StateIndexConfig& states = plan->kv.states;
    ledger.push_back({"checkpoints", bytes * states.num_checkpoints,
                      std::to_string(states.num_checkpoints) + " states of cached prefixes, one each " +
                          std::to_string(states.checkpoint_interval) + " tokens and at a prompt's end"});
  }
  ledger.push_back({"block tables", fixed.tables, rows + " x " + std::to_string(plan->context_length) + " tokens"});
  ledger.push_back({"row state", fixed.row_state, "token log, sampling state, bias, stop ids of " + rows});
  ledger.push_back({"masks, pinned", fixed.masks, "tokens that grammars allow, of " + rows});
  ledger.push_back({"scratch", fixed.scratch,
                    "activations of " + std::to_string(plan->max_step_tokens) +
                        " tokens, decode partials, logits"});
  ledger.push_back({"staging, device", fixed.staging_device, "ring of " + std::to_string(kStagingRing) + " slabs"});
  ledger.push_back({"staging, pinned", fixed.staging_pinned, "slabs and sampled ids"});
}

}  // namespace

EngineLimits default_limits(const std::string& kind) {
  // A GPU's memory is the server's alone; its blocks are what one bulk copy brings (kernels/cuda/kv_layout.h).
  if (kind == "cuda") {
    return {.max_rows = 64, .chunk_size = 2048, .block_size = 64, .mem_fraction = 0.9, .default_total_tokens = 0};
  }
  // More rows on a CPU only lengthen every step; beyond 512 tokens a chunk's linear layers gain nothing; memory is shared
  // with other programs.
  return {.max_rows = 16, .chunk_size = 512, .block_size = 16, .mem_fraction = 0.5};
}

size_t MemoryPlan::total_bytes() const {
  size_t total = 0;
  for (const LedgerLine& line : ledger) total += line.bytes;
  return total;
}

Expected<MemoryPlan> plan_memory(const Model& model, size_t weight_bytes, const Backend& backend,
                                 const EngineLimits& limits, size_t memory_bytes, int64_t sampled_vocab) {
  MemoryPlan plan;
  plan.context_length = limits.context_length > 0 ? limits.context_length : model.config.context;
  plan.kv.block_size = limits.block_size;
  plan.kv.prefix_cache = limits.prefix_cache;
  set_shapes(model, limits, sampled_vocab, &plan);
  auto fixed = fixed_bytes(model, backend, plan);
  if (!fixed) return fail(fixed.error());

  size_t window_bytes = 0, full_token_bytes = 0;
  for (const KvGroupSpec& group : model.groups) {
    if (group.window == 0) {
      full_token_bytes += kv_bytes_per_token(group, backend);
    } else {
      window_bytes += kv_bytes_per_token(group, backend) * window_blocks(group, limits) * limits.block_size;
    }
  }
  const auto allowed = static_cast<size_t>(static_cast<double>(memory_bytes) * limits.mem_fraction);
  plan.memory_bytes = memory_bytes, plan.allowed_bytes = allowed;
  const size_t row_states = model.states.bytes() * limits.max_rows;
  size_t claimed = weight_bytes + fixed->total() + window_bytes + row_states;
  const auto room = memory_bytes > 0 ? std::optional(allowed - std::min(allowed, claimed)) : std::nullopt;
  plan.kv.states = {.recurrent = model.states.num_layers > 0,
                    .num_checkpoints = num_checkpoints(model.states, limits, room),
                    .checkpoint_interval = limits.checkpoint_interval,
                    .checkpoint_min_tokens = limits.checkpoint_min_tokens};
  claimed += model.states.bytes() * plan.kv.states.num_checkpoints;
  int64_t tokens = limits.max_total_tokens;
  const int64_t one_context = div_up(plan.context_length, limits.block_size) * limits.block_size;
  if (tokens == 0) {
    tokens = int64_t{limits.max_rows} * one_context;
    if (limits.default_total_tokens > 0) tokens = std::min(tokens, std::max(limits.default_total_tokens, one_context));
    if (memory_bytes > 0 && full_token_bytes > 0) {
      const int64_t room = allowed > claimed ? static_cast<int64_t>((allowed - claimed) / full_token_bytes) : 0;
      tokens = limits.default_total_tokens > 0 ? std::min(tokens, room) : room;
    }
  }
  if (memory_bytes > 0 && (tokens < limits.block_size || claimed + full_token_bytes * tokens > memory_bytes)) {
    plan.fits = {StatusCode::kResourceExhausted,
                 "the model does not fit: weights " + mib(weight_bytes) + ", fixed " + mib(claimed - weight_bytes) +
                     ", KV " + std::to_string(full_token_bytes) + " B per token, of " + mib(memory_bytes) + " free (" +
                     mib(allowed) + " by --mem-fraction-static); " +
                     remedy(model, backend, limits, plan, fixed->total(),
                            weight_bytes - std::min(weight_bytes, memory_bytes))};
    if (limits.max_total_tokens == 0) tokens = one_context;
  }
  for (const KvGroupSpec& group : model.groups) {
    const int64_t full = div_up(tokens, limits.block_size) + 1;  // block 0 is nobody's
    const int64_t blocks = group.window == 0 ? full : std::min(full, window_blocks(group, limits));
    plan.kv.groups.push_back({.window = group.window, .num_blocks = static_cast<int32_t>(blocks)});
  }
  if (plan.context_length > model.config.context) {
    plan.notes.push_back("context length " + std::to_string(plan.context_length) + " is more than the " +
                         std::to_string(model.config.context) + " tokens the model was made for: expect nonsense beyond");
  }
  if (tokens < plan.context_length) {
    plan.notes.push_back("context length lowered from " + std::to_string(plan.context_length) + " to " +
                         std::to_string(tokens) + " tokens: that is what the KV pool holds");
    plan.context_length = static_cast<int32_t>(tokens);
    set_shapes(model, limits, sampled_vocab, &plan);  // tables, row state and slabs shrink with it
    fixed = fixed_bytes(model, backend, plan);
    if (!fixed) return fail(fixed.error());
  }
  write_ledger(model, backend, weight_bytes, *fixed, &plan);
  return plan;
}

std::string format_ledger(const MemoryPlan& plan) {
  std::string out;
  char line[256];
  for (const LedgerLine& entry : plan.ledger) {
    std::snprintf(line, sizeof line, "  %-16s %10s  %s\n", entry.name.c_str(), mib(entry.bytes).c_str(),
                  entry.detail.c_str());
    out += line;
  }
  std::snprintf(line, sizeof line, "  %-16s %10s\n", "total", mib(plan.total_bytes()).c_str());
  out += line;
  if (plan.memory_bytes == 0) return out;
  std::snprintf(line, sizeof line, "  %-16s %10s  of %s free, by --mem-fraction-static%s\n", "allowed",
                mib(plan.allowed_bytes).c_str(), mib(plan.memory_bytes).c_str(),
                plan.fits.ok() ? "" : ": the model does not fit");
  return out + line;
}

}  // namespace tailrace
