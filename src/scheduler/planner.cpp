// Which rows the next step runs, and with how many tokens.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/test_fault.h"
#include "scheduler/scheduler_impl.h"

namespace tailrace {

StepPlan Scheduler::Impl::plan_step() {
  CHECK_MSG(inflight.empty() || inflight.back().launched, "the last plan was not launched");
  take_cancelled();
  admission_closed = masks_missing = false;
  StepPlan plan;
  if (inflight.size() >= kMaxInflight) return plan;
  plan.step = next_step;
  plan.rows.reserve(running.size());
  inflight.emplace_back();
  inflight.back().rows.reserve(running.size());
  inflight.back().step = next_step;
  StepShape shape;
  uint64_t preemptions_before;
  do {
    preemptions_before = stats.preemptions;
    shape = StepShape{};
    build(plan, shape);
    // A row that gave way while the step was built has left blocks: try again before anybody else
    // has to.
  } while (plan.rows.empty() && (stats.preemptions != preemptions_before || resolve_stall()));
  if (plan.rows.empty()) {
    inflight.pop_back();
    return StepPlan{};
  }
  ++next_step;
  StepShape decode_only;
  decode_only.decode_rows = shape.decode_rows;
  decode_only.decode_kv_tokens = shape.decode_kv_tokens;
  plan.decode_only_us = plan.num_decode_rows > 0 ? cost.predict_us(decode_only) : 0;
  plan.predicted_us = cost.predict_us(shape);
  count_step(plan);
  return plan;
}

void Scheduler::Impl::build(StepPlan& plan, StepShape& shape) {
  const bool alternate = config.mixed == MixedMode::kOff;
  const auto in_prefill = [](const Sequence* sequence) { return sequence->prefilling(); };
  const bool any_prefill = alternate && (admission.front() != nullptr ||
                                         std::any_of(running.begin(), running.end(), in_prefill));
  if (!alternate || last_was_extend || !any_prefill) add_decode_rows(plan, shape);
  if (!alternate || plan.rows.empty()) add_extend_rows(plan, shape);
  if (alternate && plan.rows.empty()) add_decode_rows(plan, shape);  // no chunk could be had
}

// Where the state of the recurrent layers is kept next, in tokens: at multiples, where a prompt leaves what others
// shared, and at the end of what a prompt's repetition could match. A chunk that would pass it ends there. Keeping one
// while a row decodes takes a slab of its own: the more rows decode, the further apart, so that a step in 128 has one.
int32_t Scheduler::Impl::next_checkpoint(const Sequence& sequence) const {
  constexpr int32_t kNever = INT32_MAX, kRowsPerInterval = 16;
  if (!index.can_checkpoint(sequence.kv)) return kNever;
  const StateIndexConfig& states = config.kv.states;
  const int32_t first = std::max(sequence.computed_len + 1, sequence.checkpoint_len + states.checkpoint_min_tokens);
  const auto rows = static_cast<int32_t>(running.size());
  const int32_t apart = sequence.prefilling() ? 1 : (rows + kRowsPerInterval - 1) / kRowsPerInterval;
  const int64_t interval = int64_t{states.checkpoint_interval} * apart;
  int32_t next = static_cast<int32_t>(std::min<int64_t>((first + interval - 1) / interval * interval, kNever));
  const int32_t end = (sequence.prefill_len - 1) / index.block_size() * index.block_size();
  for (const int32_t len : {sequence.shared_len, end}) {
    if (len >= first && len < sequence.prefill_len) next = std::min(next, len);
  }
  return next;
}

void Scheduler::Impl::add_row(StepPlan& plan, Sequence& sequence, int32_t q_len, bool samples) {
  PlanRow row;
  row.request_id = sequence.request->id;
  row.slot = sequence.slot;
  row.computed_len = sequence.computed_len;
  row.q_len = q_len;
  row.samples = samples;
  if (config.kv.states.recurrent && !std::exchange(sequence.state_begun, true)) {
    const int32_t from = index.take_source(sequence.kv, plan.step);
    row.state_from = from > 0 ? from : kZeroState;
  }
  if (row.kv_len() == next_checkpoint(sequence)) {
    row.state_save = index.take_checkpoint(sequence.kv, row.kv_len());
    if (row.state_save > 0) sequence.checkpoint_len = row.kv_len();
  }
  plan.rows.push_back(row);
  plan.num_tokens += q_len;
  for (int32_t g = 0; g < index.num_groups(); ++g) {
    SequenceKv::Group& group = sequence.kv.groups[g];
    // Entries before the window may have been released since they were marked; the device never
    // reads them.
    const int32_t begin = std::max(group.dirty_begin, group.first_held);
    if (begin < group.dirty_end) {
      BlockPatch& patch = plan.block_patches.emplace_back();
      patch.group = g;
      patch.slot = sequence.slot;
      patch.first_index = begin;
      patch.blocks.reserve(group.dirty_end - begin);
      for (int32_t i = begin; i < group.dirty_end; ++i)
        patch.blocks.push_back(std::max(0, group.blocks[i]));
    }
    group.dirty_begin = group.dirty_end = 0;
  }
  const bool last_chunk =
      sequence.prefilling() && sequence.computed_len + q_len == sequence.prefill_len;
  inflight.back().rows.push_back({&sequence, samples, last_chunk});
  sequence.computed_len += q_len;
  if (samples) ++sequence.planned_len;
  ++sequence.inflight;
  sequence.last_step = plan.step;
}

void Scheduler::Impl::add_decode_rows(StepPlan& plan, StepShape& shape) {
  top_up_due = false;
  // By index: growing may preempt rows at the end of the list, this one included.
  for (size_t i = 0; i < running.size(); ++i) {
    Sequence& sequence = *running[i];
    if (!sequence.ready_to_decode()) continue;
    if (!sequence.mask_will_do()) {
      masks_missing = true;
      continue;
    }
    index.expire(sequence.kv, sequence.computed_len, sequence.last_step, sequence.inflight > 0);
    grow_for_decode(sequence);
  }
  if (top_up_due) top_up_decode_rows();
  for (Sequence* sequence : running) {
    if (!sequence->ready_to_decode() || sequence->computed_len >= index.covered_len(sequence->kv) ||
        !sequence->mask_will_do())
      continue;
    CHECK(sequence->computed_len == sequence->planned_len - 1);
    add_row(plan, *sequence, 1, true);
    ++shape.decode_rows;
    shape.decode_kv_tokens += sequence->computed_len;
  }
  plan.num_decode_rows = static_cast<int32_t>(plan.rows.size());
}

void Scheduler::Impl::add_extend_rows(StepPlan& plan, StepShape& shape) {
  floor_step = false;
  const int32_t limit = std::min(config.chunk_size, config.max_step_tokens - plan.num_tokens);
  if (limit <= 0) return;
  admit_waiting(limit);
  std::vector<Sequence*> order;  // who is served first
  for (Sequence* sequence : running) {
    if (sequence->prefilling()) order.push_back(sequence);
  }
  if (order.empty()) return;
  // The oldest and the shortest share the step, so that a short prompt does not wait for the whole
  // of a long one before it; what they leave goes to the others by arrival.
  const auto less = [](const Sequence* a, const Sequence* b) {
    return a->remaining_prefill() < b->remaining_prefill();
  };
  const auto shortest = std::min_element(order.begin(), order.end(), less);
  bool split = shortest != order.begin();
  const double budget_us = config.max_mixed_ratio * cost.predict_us(shape);
  if (split && ((plan.step >> 1) & 1) != 0) {  // every other pair of steps
    // Too little for two: they take turns.
    const int32_t room =
        shape.decode_rows > 0
            ? cost.max_extend_tokens(shape, (*shortest)->computed_len, budget_us, limit)
            : limit;
    split = room >= 2 * kShareTokens;
  }
  if (split) std::rotate(order.begin(), shortest, shortest + 1);
  int32_t left = limit;
  bool at_floor = false;
  for (size_t i = 0; i < order.size() && left > 0 && !at_floor; ++i) {
    Sequence& sequence = *order[i];
    if (sequence.state != SequenceState::kRunning) continue;  // preempted a moment ago to make room for an older row
    int32_t want = std::min(sequence.remaining_prefill(), left);
    if (shape.decode_rows > 0) {
      int32_t allowed = cost.max_extend_tokens(shape, sequence.computed_len, budget_us, left);
      const int32_t floor = std::min(want, kFloorTokens);
      if (allowed < floor) {
        // Even the smallest chunk exceeds the ratio: it rides with every second step.
        if (shape.extend_tokens > 0 || last_was_floor_step) break;
        at_floor = true;
        allowed = floor;
      }
      if (split && i == 0 && !at_floor) allowed = std::min(allowed, std::max(std::min(want, kShareTokens), allowed / 2));
      want = std::min(want, allowed);
    } else if (split && i == 0) {
      want = std::min(want, std::max(std::min(kShareTokens, left), left / 2));
    }
    const int32_t before = plan.num_tokens;
    if (add_chunk(plan, shape, sequence, want)) left -= plan.num_tokens - before;
  }
  floor_step = at_floor;
}

bool Scheduler::Impl::add_chunk(StepPlan& plan, StepShape& shape, Sequence& sequence,
                                int32_t q_len) {
  CHECK(sequence.state == SequenceState::kRunning);
  // The cached prefix travels in the token log too, since penalties read it; one start may take the
  // whole of a patch.
  const int32_t start_len = sequence.computed_len - sequence.logged_len;
  int32_t logged = 0;
  for (const LogPatch& patch : plan.log_patches) logged += static_cast<int32_t>(patch.ids.size());
  if (logged + start_len + q_len > config.max_log_patch_tokens) return false;

  index.expire(sequence.kv, sequence.computed_len, sequence.last_step, sequence.inflight > 0);
  q_len = std::min(q_len, next_checkpoint(sequence) - sequence.computed_len);
  const int32_t want_len = sequence.computed_len + q_len;
  q_len = index.cover(sequence.kv, want_len) - sequence.computed_len;
  if (q_len <= 0 && &sequence == running.front() && make_room_for(sequence)) {
    q_len = index.cover(sequence.kv, want_len) - sequence.computed_len;
  }
  if (q_len <= 0) return false;  // younger rows in prefill wait for blocks
  if (sequence.computed_len + q_len == sequence.prefill_len && !sequence.mask_is_there()) {
    masks_missing = true;  // computed since it was admitted; prompts whose last tokens ran without one would run again
    return false;
  }
  const bool first_chunk = sequence.logged_len == 0;
  if (first_chunk) plan.starts.push_back({sequence.slot, sequence.request});
  const auto ids = sequence.tokens.begin();
  const int32_t end = sequence.computed_len + q_len;
  plan.log_patches.push_back(
      {sequence.slot, sequence.logged_len, {ids + sequence.logged_len, ids + end}});
  sequence.logged_len = end;
  shape.extend_tokens += q_len;
  shape.extend_kv_tokens += sequence.computed_len;
  shape.extend_kv_pairs += int64_t(q_len) * (sequence.computed_len + q_len / 2);
  const bool last = end == sequence.prefill_len;
  add_row(plan, sequence, q_len, last || test_fault(Fault::kSampleMiddleChunk));
  return true;
}

void Scheduler::Impl::admit_waiting(int32_t share) {
  if (admission_closed) return;
  // Only who waits for another's prefix is passed over.
  for (size_t i = 0;
       i < std::min(admission.waiting().size(), kMaxPassedOver) && !free_slots.empty();) {
    Sequence& sequence = *admission.waiting()[i];
    // More rows in prefill only while they fill the step, or for a prompt shorter than those.
    int32_t wanted = 0, shortest = INT32_MAX;
    for (const Sequence* row : running) {
      if (!row->prefilling()) continue;
      wanted += std::min(row->remaining_prefill(), std::max(1, share / 2));
      shortest = std::min(shortest, row->remaining_prefill());
    }
    if (wanted >= share && sequence.known_len() >= shortest) return;
    sequence.hash_whole_blocks(index.block_size());
    if (waits_for_prefix(sequence)) {
      ++i;
      continue;
    }
    const bool alone = running.empty() && leaving.empty();
    // A look-up walks the whole prompt: not in every step that has no room for it.
    const bool looked_up =
        sequence.refused_step > 0 && next_step - sequence.refused_step < kLookUpAgainSteps;
    if (looked_up && !admission.fits(sequence, sequence.refused_match, running, index, alone))
      return;
    PrefixMatch match = index.match(sequence.key(), sequence.known_len() - 1);
    if (!admission.fits(sequence, match, running, index, alone)) {
      match.path.clear();
      sequence.refused_match = std::move(match);
      sequence.refused_step = next_step;
      return;
    }
    sequence.refused_step = 0;
    admission.remove(&sequence);
    start_running(sequence, match);
  }
}

// Of tokens that a row in prefill has in common with another sequence, those that it lets match once it is done: with
// recurrent layers, up to a checkpoint.
int32_t Scheduler::Impl::sharable_len(const Sequence& row, int32_t common_len) const {
  if (!config.kv.states.recurrent) return common_len;
  if (!index.keeps_checkpoints()) return 0;
  const StateIndexConfig& states = config.kv.states;
  const int32_t end = (row.prefill_len - 1) / index.block_size() * index.block_size();
  if (end <= common_len && end - row.checkpoint_len >= states.checkpoint_min_tokens) return end;
  const int32_t last = row.checkpoint_len <= common_len ? row.checkpoint_len : 0;
  return std::max(last, common_len / states.checkpoint_interval * states.checkpoint_interval);
}

// Whether a row in prefill will give the tree more of this prompt than it has now, for a wait of at
// most twice what that spares: n choices of one prompt, or a burst behind one system prompt.
bool Scheduler::Impl::waits_for_prefix(Sequence& sequence) const {
  if (!config.kv.prefix_cache) return false;
  const int32_t bs = index.block_size();
  const auto useful = static_cast<size_t>((sequence.known_len() - 1) / bs);
  int32_t matched = -1;
  for (const Sequence* row : running) {
    if (!row->prefilling() || row->request->cache_salt != sequence.request->cache_salt) continue;
    if (row->arrival != sequence.waits_for) {
      const size_t limit = std::min(useful, row->hashes.size());
      size_t common = 0;
      while (common < limit && row->hashes[common] == sequence.hashes[common]) ++common;
      if (static_cast<int32_t>(common) * bs < kMinSharedTokens) continue;
      if (matched < 0) matched = index.match(sequence.key(), sequence.known_len() - 1).num_blocks;
      const int32_t gain = sharable_len(*row, static_cast<int32_t>(common) * bs) - matched * bs;
      if (gain < kMinSharedTokens) continue;
      sequence.waits_for = row->arrival;
      sequence.waits_for_gain = gain;
    }
    if (row->remaining_prefill() <= 2 * sequence.waits_for_gain) return true;
  }
  return false;
}

void Scheduler::Impl::count_step(const StepPlan& plan) {
  const bool decode = plan.num_decode_rows > 0;
  const bool extend = plan.num_decode_rows < static_cast<int32_t>(plan.rows.size());
  if (decode && extend)
    ++stats.mixed_steps;
  else if (decode)
    ++stats.decode_steps;
  else
    ++stats.extend_steps;
  if (decode) admission.on_decode_step();
  last_was_extend = extend;
  last_was_floor_step = decode && extend && floor_step;
  if (last_was_floor_step) ++stats.floor_steps;
  int32_t logged = 0;
  for (const LogPatch& patch : plan.log_patches) logged += static_cast<int32_t>(patch.ids.size());
  const int32_t extend_tokens = plan.num_tokens - plan.num_decode_rows;
  if (plan.num_tokens > config.max_step_tokens ||
      static_cast<int32_t>(plan.rows.size()) > config.max_rows ||
      extend_tokens > config.chunk_size || logged > config.max_log_patch_tokens) {
    broken_budget = "step " + std::to_string(plan.step) + " exceeds its budget";
  }
}

}  // namespace tailrace
