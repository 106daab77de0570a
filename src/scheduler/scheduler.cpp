#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/test_fault.h"
#include "scheduler/scheduler_impl.h"

namespace tailrace {

Scheduler::Impl::Impl(SchedulerConfig given)
    : config(std::move(given)), cost(config.cost), index(config.kv), admission(config) {
  CHECK_MSG(config.max_rows >= 1 && config.max_step_tokens >= config.max_rows,
            "a step must hold one token per row");
  CHECK(config.chunk_size >= 1 && config.max_mixed_ratio >= 1);
  CHECK_MSG(config.max_log_patch_tokens >= config.context_length + config.max_step_tokens,
            "a log patch must hold a whole context and a step");
  for (int32_t slot = config.max_rows - 1; slot >= 0; --slot) free_slots.push_back(slot);
}

Status Scheduler::Impl::admit(std::shared_ptr<const Request> request) {
  if (Status status = admission.validate(*request, index); !status.ok()) return status;
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->stream = sequence->request->stream.get();
  sequence->arrival = next_arrival++;
  sequence->tokens = sequence->request->prompt_ids;
  sequence->prompt_len = sequence->known_len();
  sequence->max_len = sequence->prompt_len + sequence->request->max_tokens;
  sequence->prefill_len = sequence->planned_len = sequence->prompt_len;
  if (sequence->request->constraint) {
    if (config.masks == nullptr) return Status(StatusCode::kUnsupported, "this engine has no grammars");
    sequence->masks = config.masks->open(sequence->request);
  }
  admission.enqueue(sequence.get());
  Sequence* key = sequence.get();
  sequences.emplace(key, std::move(sequence));
  return {};
}

// Those whose client left, and those whose grammar failed.
void Scheduler::Impl::take_cancelled() {
  const auto cancel = [this](Sequence* sequence) {
    SequenceUpdate update;
    if (sequence->masks) update.error = sequence->masks->failure();
    update.finish = update.error.ok() ? FinishReason::kCancelled : FinishReason::kError;
    finish(*sequence, std::move(update));
  };
  const auto first_cancelled = [](const auto& list) -> Sequence* {
    for (Sequence* sequence : list) {
      if (sequence->finished) continue;
      if (sequence->stream->cancelled() || (sequence->masks && !sequence->masks->failure().ok())) return sequence;
    }
    return nullptr;
  };
  while (Sequence* sequence = first_cancelled(admission.waiting())) cancel(sequence);
  while (Sequence* sequence = first_cancelled(running)) cancel(sequence);
  while (Sequence* sequence = first_cancelled(leaving)) cancel(sequence);
}

void Scheduler::Impl::finish(Sequence& sequence, SequenceUpdate update) {
  CHECK(!sequence.finished);
  sequence.finished = true;
  update.request = sequence.request;
  update.finished = true;
  updates.push_back(std::move(update));
  if (sequence.state == SequenceState::kWaiting) {
    admission.remove(&sequence);
    destroy(sequence);
    return;
  }
  leave_running(sequence, SequenceState::kRetiring);
}

void Scheduler::Impl::leave_running(Sequence& sequence, SequenceState state) {
  if (sequence.state == SequenceState::kRunning) {
    running.erase(std::find(running.begin(), running.end(), &sequence));
    leaving.push_back(&sequence);
  }
  sequence.state = state;
  if (test_fault(Fault::kReleaseInFlight) && sequence.inflight > 0 && sequence.slot >= 0) {
    release_slot_and_blocks(sequence);
  }
  leave_if_unused(sequence);
}

void Scheduler::Impl::release_slot_and_blocks(Sequence& sequence) {
  if (sequence.slot < 0) return;
  const bool aborted_in_chunk = sequence.prefilling();
  if (!aborted_in_chunk) {
    sequence.hash_whole_blocks(index.block_size());
    const int32_t len =
        test_fault(Fault::kInsertUnwritten) ? sequence.known_len() : sequence.written_len();
    index.insert(sequence.kv, sequence.key(), len / index.block_size(), sequence.last_step, false);
  }
  const bool aborted = sequence.state == SequenceState::kRetiring && sequence.stream->cancelled();
  index.release(sequence.kv, aborted && test_fault(Fault::kAbortLeaks));
  if (sequence.masks) sequence.masks->bind(-1);
  free_slots.push_back(sequence.slot);
  sequence.slot = -1;
}

void Scheduler::Impl::leave_if_unused(Sequence& sequence) {
  if (sequence.inflight > 0) return;
  if (sequence.state != SequenceState::kRetiring && sequence.state != SequenceState::kPreempting)
    return;
  release_slot_and_blocks(sequence);
  leaving.erase(std::find(leaving.begin(), leaving.end(), &sequence));
  if (sequence.state == SequenceState::kRetiring) {
    destroy(sequence);
    return;
  }
  // Preempted: everything delivered so far becomes its prefill.
  sequence.state = SequenceState::kWaiting;
  sequence.prefill_len = sequence.planned_len = sequence.known_len();
  sequence.computed_len = sequence.logged_len = 0;
  admission.enqueue(&sequence);
}

void Scheduler::Impl::destroy(Sequence& sequence) { sequences.erase(&sequence); }

void Scheduler::Impl::start_running(Sequence& sequence, const PrefixMatch& match) {
  index.adopt(sequence.kv, match);
  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots.back();
  free_slots.pop_back();
  sequence.computed_len = match.num_blocks * index.block_size();
  sequence.logged_len = 0;
  sequence.state_begun = false;
  sequence.checkpoint_len = sequence.computed_len;
  sequence.shared_len = match.shared_blocks * index.block_size();
  if (sequence.masks) sequence.masks->bind(sequence.slot);
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    sequence.stream->cached_len.store(sequence.computed_len, std::memory_order_relaxed);
    sequence.stream->times.admitted_ns.store(now_ns(), std::memory_order_relaxed);
    stats.prompt_tokens += sequence.prompt_len;
    stats.cached_tokens += sequence.computed_len;
  }
  const auto later = [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; };
  running.insert(std::upper_bound(running.begin(), running.end(), &sequence, later), &sequence);
}

void Scheduler::Impl::on_launched(const StepPlan& plan) {
  CHECK(!inflight.empty() && inflight.back().step == plan.step && !inflight.back().launched);
  inflight.back().launched = true;
  // The KV of these prompts is written by this step, and every later step is ordered behind it on
  // the device: whoever is planned from now on may match them.
  for (const StepInFlight::Row& row : inflight.back().rows) {
    if (!row.last_chunk || row.sequence->slot < 0) continue;
    Sequence& sequence = *row.sequence;
    sequence.hash_whole_blocks(index.block_size());
    index.insert(sequence.kv, sequence.key(), sequence.written_len() / index.block_size(),
                 sequence.last_step, true);
  }
}

void Scheduler::Impl::on_result(const StepResult& result) {
  CHECK(!inflight.empty() && inflight.front().launched && inflight.front().step == result.step);
  const StepInFlight step = std::move(inflight.front());
  inflight.pop_front();
  completed_step = result.step;
  CHECK(result.ids.size() == step.rows.size());
  for (size_t i = 0; i < step.rows.size(); ++i) {
    Sequence& sequence = *step.rows[i].sequence;
    --sequence.inflight;
    if (sequence.slot >= 0) index.settle(sequence.kv, completed_step);
    if (!step.rows[i].samples || sequence.finished) continue;
    if (result.ids[i] < 0 && sequence.masks) {
      take_late(sequence);
    } else {
      give_token(sequence, static_cast<int32_t>(i), result.ids[i]);
    }
  }
  for (const StepInFlight::Row& row : step.rows) leave_if_unused(*row.sequence);
}

// A token of a running or draining sequence. Its end releases nothing yet: the caller does, once
// all rows are counted.
void Scheduler::Impl::give_token(Sequence& sequence, int32_t row, TokenId token) {
  CHECK_MSG(token >= 0, "the device took a row for ended that is not");
  const Request& request = *sequence.request;
  const int32_t before = sequence.known_len() - sequence.prompt_len;
  sequence.tokens.push_back(token);
  ++stats.generated_tokens;
  SequenceUpdate update;
  update.request = sequence.request;
  update.row = row;
  update.token = token;
  const auto& stops = request.stop_token_ids;
  const bool stopped = (sequence.masks || before >= request.min_tokens) &&
                       std::find(stops.begin(), stops.end(), token) != stops.end();
  if (!stopped && sequence.known_len() < sequence.max_len) {
    if (sequence.masks) sequence.masks->push(token);
    updates.push_back(std::move(update));
    return;
  }
  update.finished = true;
  update.finish = stopped ? FinishReason::kStop : FinishReason::kLength;
  updates.push_back(std::move(update));
  sequence.finished = true;
  sequence.stopped = stopped;
  stop_planning(sequence, SequenceState::kRetiring);
  if (test_fault(Fault::kReleaseInFlight)) release_slot_and_blocks(sequence);
}

void Scheduler::Impl::stop_planning(Sequence& sequence, SequenceState state) {
  if (sequence.state == SequenceState::kRunning) {
    running.erase(std::find(running.begin(), running.end(), &sequence));
    leaving.push_back(&sequence);
  }
  sequence.state = state;
}

// The device left the row out, and leaves it out of steps behind: it starts over, with what it has.
void Scheduler::Impl::take_late(Sequence& sequence) {
  ++stats.late_rows;
  if (sequence.state != SequenceState::kRunning) return;
  ++stats.late_masks;
  sequence.late_backoff = std::clamp(2 * sequence.late_backoff, kFirstBackoff, kMostBackoff);
  sequence.eager_from = sequence.known_len() + sequence.late_backoff;
  stop_planning(sequence, SequenceState::kPreempting);
}

void Scheduler::Impl::fail_all(const Status& error) {
  std::vector<Sequence*> all(admission.waiting().begin(), admission.waiting().end());
  all.insert(all.end(), running.begin(), running.end());
  all.insert(all.end(), leaving.begin(), leaving.end());
  std::sort(all.begin(), all.end(),
            [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; });
  for (Sequence* sequence : all) {
    if (sequence->finished) continue;
    SequenceUpdate update;
    update.finish = FinishReason::kError;
    update.error = error;
    finish(*sequence, std::move(update));
  }
}

Scheduler::Scheduler(SchedulerConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Scheduler::~Scheduler() = default;
Status Scheduler::admit(std::shared_ptr<const Request> request) {
  return impl_->admit(std::move(request));
}
StepPlan Scheduler::plan_step() { return impl_->plan_step(); }
bool Scheduler::waits_for_masks() const { return impl_->masks_missing && impl_->inflight.empty(); }
void Scheduler::on_launched(const StepPlan& plan) { impl_->on_launched(plan); }
void Scheduler::on_result(const StepResult& result) { impl_->on_result(result); }
std::vector<SequenceUpdate> Scheduler::take_updates() { return std::exchange(impl_->updates, {}); }
void Scheduler::fail_all(const Status& error) { impl_->fail_all(error); }
int64_t Scheduler::flush_cache() { return impl_->index.flush(); }
bool Scheduler::idle() const {
  return impl_->admission.waiting().empty() && impl_->running.empty() && impl_->leaving.empty() &&
         impl_->inflight.empty();
}
SchedulerStats Scheduler::stats() const { return impl_->current_stats(); }
CostModel& Scheduler::cost_model() { return impl_->cost; }
std::string Scheduler::check_invariants() const { return impl_->check_invariants(); }

}  // namespace tailrace
