// What must hold between any two calls of the scheduler.
#include "scheduler/scheduler_impl.h"

namespace tailrace {

std::string Scheduler::Impl::check_invariants() const {
  if (!broken_budget.empty()) return broken_budget;
  if (inflight.size() > kMaxInflight) return "too many steps in flight";
  std::vector<const SequenceKv*> holders;
  std::vector<int32_t> owners(config.max_rows, 0);
  for (const int32_t slot : free_slots) ++owners[slot];
  std::unordered_map<const Sequence*, int32_t> rows;
  for (const StepInFlight& step : inflight) {
    for (const StepInFlight::Row& row : step.rows) ++rows[row.sequence];
  }
  for (const auto& [sequence, owned] : sequences) {
    holders.push_back(&sequence->kv);
    const bool waiting = sequence->state == SequenceState::kWaiting;
    if (waiting != (sequence->slot < 0)) return "a sequence's slot does not fit its state";
    if (waiting && !sequence->kv.empty()) return "a waiting sequence holds blocks";
    if (!waiting) ++owners[sequence->slot];
    const auto found = rows.find(sequence);
    if (sequence->inflight != (found == rows.end() ? 0 : found->second))
      return "a wrong count of steps in flight";
  }
  for (int32_t slot = 0; slot < config.max_rows; ++slot) {
    if (owners[slot] != 1)
      return "slot " + std::to_string(slot) + " has " + std::to_string(owners[slot]) + " owners";
  }
  if (running.size() + leaving.size() + admission.waiting().size() != sequences.size())
    return "a sequence in no list";
  return index.check_invariants(holders);
}

SchedulerStats Scheduler::Impl::current_stats() const {
  SchedulerStats out = stats;
  out.running = static_cast<int32_t>(running.size() + leaving.size());
  out.waiting = static_cast<int32_t>(admission.waiting().size());
  out.inflight_steps = static_cast<int32_t>(inflight.size());
  for (int32_t g = 0; g < index.num_groups(); ++g) out.kv.push_back(index.usage(g));
  out.checkpoints = index.checkpoint_usage();
  return out;
}

}  // namespace tailrace
