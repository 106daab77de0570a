#include "simulation/sim_engine.h"

#include <algorithm>

namespace tailrace {
namespace {

// Waiting for a leaving row takes two steps, a turn of a floor chunk or of an alternating chunk
// four.
constexpr int32_t kMaxMissedSteps = 8;

SchedulerConfig with_masks(SchedulerConfig config, FakeMasks& masks) {
  config.masks = &masks;
  return config;
}

}  // namespace

SimEngine::SimEngine(const SchedulerConfig& config)
    : masks_(config.max_rows),
      config_(with_masks(config, masks_)),
      scheduler_(config_),
      device_(config.kv, config.max_rows, config.context_length, masks_) {}

void SimEngine::report(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void SimEngine::trace_number(uint64_t number) {
  trace_ = (trace_ ^ number) * 0x100000001b3ull;
  trace_ ^= trace_ >> 31;
}

Status SimEngine::admit(std::shared_ptr<const Request> request) {
  if (Status status = scheduler_.admit(request); !status.ok()) return status;
  Answer answer;
  answer.request = request;
  answer.chain = chain_start(request->cache_salt);
  for (const TokenId token : request->prompt_ids) answer.chain = chain_next(answer.chain, token);
  answers_.emplace(request->id, std::move(answer));
  return {};
}

void SimEngine::check() {
  report(device_.violation());
  report(masks_.violation());
  if (violation_.empty()) report(scheduler_.check_invariants());
}

void SimEngine::check_plan(const StepPlan& plan) {
  std::vector<int32_t> slots;
  int32_t tokens = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    slots.push_back(row.slot);
    tokens += row.q_len;
    const bool decode = static_cast<int32_t>(i) < plan.num_decode_rows;
    if (decode && (row.q_len != 1 || !row.samples)) report("a decode row that is none");
    if (row.state_save > 0 && row.kv_len() % config_.kv.block_size != 0) report("a checkpoint within a block");
    num_checkpoints_ += row.state_save > 0;
    num_checkpoint_starts_ += row.state_from > 0;
    const Answer& answer = answers_.at(row.request_id);
    const int32_t prompt_len = static_cast<int32_t>(answer.request->prompt_ids.size());
    if (row.samples && row.kv_len() < prompt_len) report("a middle chunk is sampled from");
    if (row.kv_len() >= prompt_len + answer.request->max_tokens)
      report("a row runs past its last token");
    for (const auto& value :
         {row.request_id, uint64_t(row.slot), uint64_t(row.computed_len), uint64_t(row.q_len),
          uint64_t(uint32_t(row.state_from)), uint64_t(uint32_t(row.state_save))}) {
      trace_number(value - (value == row.request_id ? answers_.begin()->first : 0));
    }
  }
  if (tokens != plan.num_tokens) report("a wrong token count");
  std::sort(slots.begin(), slots.end());
  if (std::adjacent_find(slots.begin(), slots.end()) != slots.end())
    report("two rows share a slot");
  const bool mixed =
      plan.num_decode_rows > 0 && plan.num_decode_rows < static_cast<int32_t>(plan.rows.size());
  if (mixed && config_.mixed == MixedMode::kOff) report("a mixed step with mixing off");
  if (mixed && plan.predicted_us > config_.max_mixed_ratio * plan.decode_only_us + 1e-6) {
    // Only the smallest chunk may exceed the ratio, and not twice in a row.
    if (plan.num_tokens - plan.num_decode_rows > 16 || last_exceeded_)
      report("a mixed step exceeds its ratio: " + std::to_string(plan.predicted_us) +
             " us beside " + std::to_string(plan.decode_only_us) + " us, " +
             std::to_string(plan.num_tokens - plan.num_decode_rows) + " tokens");
    last_exceeded_ = true;
  } else {
    last_exceeded_ = false;
  }
  for (const BlockPatch& patch : plan.block_patches) {
    trace_number(patch.slot);
    for (const int32_t block : patch.blocks) trace_number(block);
  }
}

// Whatever happens to the others, the oldest row is never starved.
void SimEngine::check_oldest_row_moves(const StepPlan& plan) {
  for (const PlanRow& row : plan.rows) answers_.at(row.request_id).missed_steps = -2;
  bool oldest = true;
  for (auto& [id, answer] : answers_) {  // ids ascend in the order of admission
    const int32_t preemptions = answer.request->stream->num_preemptions;
    if (preemptions != answer.preemptions) answer.missed_steps = -1;
    answer.preemptions = preemptions;
    if (answer.finished || answer.missed_steps == -1) continue;
    if (answer.missed_steps == -2)
      answer.missed_steps = 0;
    else if (oldest && !answer.request->constraint && ++answer.missed_steps > kMaxMissedSteps)
      report("the oldest row is starved");
    oldest = false;
  }
}

void SimEngine::turn(size_t max_inflight) {
  if (!violation_.empty()) return;
  masks_.tick();
  last_plan_ = scheduler_.plan_step();
  check();
  const bool launched = !last_plan_.empty();
  if (launched) {
    ++num_steps_;
    num_patch_steps_ += !last_plan_.block_patches.empty() || !last_plan_.log_patches.empty();
    computed_tokens_ += last_plan_.num_tokens;
    check_plan(last_plan_);
    check_oldest_row_moves(last_plan_);
    device_.launch(last_plan_);
    scheduler_.on_launched(last_plan_);
    check();
  }
  take_updates();
  const size_t target =
      launched ? max_inflight
               : std::min(max_inflight, device_.num_inflight() - (device_.num_inflight() > 0));
  const bool waits = launched || device_.num_inflight() > 0;
  while (device_.num_inflight() > target && violation_.empty()) complete_oldest();
  empty_turns_ = waits || scheduler_.waits_for_masks() ? 0 : empty_turns_ + 1;
}

void SimEngine::complete_oldest() {
  masks_.tick();
  const StepResult result = device_.complete_oldest();
  report(device_.violation());
  if (!violation_.empty()) return;
  scheduler_.on_result(result);
  take_updates();
  check();
}

void SimEngine::take_updates() {
  for (const SequenceUpdate& update : scheduler_.take_updates()) {
    Answer& answer = answers_.at(update.request->id);
    if (answer.finished) return report("an update after the end");
    trace_number(uint64_t(update.token) * 2 + update.finished);
    if (update.row >= 0) {
      const int32_t len =
          static_cast<int32_t>(answer.request->prompt_ids.size() + answer.tokens.size());
      const TokenId right = sample_token(answer.chain, len, *answer.request);
      if (update.token != right)
        return report("request " + std::to_string(update.request->id) + " got a wrong token");
      answer.tokens.push_back(update.token);
      answer.chain = chain_next(answer.chain, update.token);
    }
    const auto& stops = answer.request->stop_token_ids;
    const bool stop =
        update.row >= 0 && std::find(stops.begin(), stops.end(), update.token) != stops.end();
    const bool last = static_cast<int32_t>(answer.tokens.size()) == answer.request->max_tokens;
    if ((stop || (last && update.row >= 0)) && !update.finished)
      report("a request runs on after its end");
    if (!update.finished) continue;
    answer.finished = true;
    answer.finish = update.finish;
    check_end(answer, update);
  }
}

void SimEngine::check_end(const Answer& answer, const SequenceUpdate& update) {
  const auto& stops = answer.request->stop_token_ids;
  const int32_t prompt_len = static_cast<int32_t>(answer.request->prompt_ids.size());
  const int32_t num_tokens = static_cast<int32_t>(answer.tokens.size());
  if (answer.request->stream->cached_len >= prompt_len)
    report("the whole prompt was served from the cache");
  switch (update.finish) {
    case FinishReason::kStop:
      if (update.row < 0 || std::find(stops.begin(), stops.end(), update.token) == stops.end()) {
        report("a stop without a stop token");
      }
      break;
    case FinishReason::kLength: {
      if (num_tokens == answer.request->max_tokens) break;
      // Else the lone sequence could not grow: what its next query sees needs more blocks than some
      // pool has.
      bool full = false;
      const int32_t pos = prompt_len + num_tokens - 1;
      for (const KvGroupConfig& group : config_.kv.groups) {
        const int32_t first = group.window == 0 ? 0 : std::max(0, pos - group.window + 1);
        full = full || pos / config_.kv.block_size - first / config_.kv.block_size + 1 >
                           group.num_blocks - 1;
      }
      if (update.row >= 0 || !full) report("a request ended early");
      break;
    }
    case FinishReason::kCancelled:
      if (!answer.request->stream->cancelled()) report("a request was cancelled by nobody");
      break;
    case FinishReason::kError:
      if (!answer.request->constraint && update.error.code() == StatusCode::kInvalidArgument)
        report("a failed grammar of a request without one");
      break;
  }
}

void SimEngine::run_until_idle(size_t max_inflight) {
  while (!scheduler_.idle() && violation_.empty()) {
    turn(max_inflight);
    if (empty_turns_ > 1) report("no progress");
  }
  if (!violation_.empty()) return;
  for (const auto& [id, answer] : answers_) {
    if (!answer.finished) report("request " + std::to_string(id) + " never ended");
  }
}

void SimEngine::check_idle_pools() {
  if (!violation_.empty()) return;
  for (const KvGroupUsage& usage : scheduler_.stats().kv) {
    if (usage.owned != 0) report("blocks are owned by nobody");
  }
  if (scheduler_.stats().checkpoints.owned != 0) report("checkpoints are owned by nobody");
  scheduler_.flush_cache();
  const SchedulerStats stats = scheduler_.stats();
  for (size_t g = 0; g < stats.kv.size(); ++g) {
    if (stats.kv[g].free != config_.kv.groups[g].num_blocks - 1) report("blocks are lost");
  }
  if (stats.checkpoints.free != config_.kv.states.num_checkpoints) report("checkpoints are lost");
  check();
}

}  // namespace tailrace
