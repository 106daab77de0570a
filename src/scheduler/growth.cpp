// Blocks for rows that grow, and who gives way when there are none.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace tailrace {

// Tokens that a decode row's table should cover when it is extended: rarely extended tables mean
// rare patches.
int32_t Scheduler::Impl::blocks_ahead_len(const Sequence& sequence) const {
  // The last token's KV is never needed.
  return std::min(sequence.computed_len + 1 + config.blocks_ahead_tokens, sequence.max_len - 1);
}

bool Scheduler::Impl::grow_for_decode(Sequence& sequence) {
  const int32_t need = sequence.computed_len + 1;
  for (;;) {
    if (index.covered_len(sequence.kv) >= need) return true;
    if (index.cover(sequence.kv, need) >= need) {
      top_up_due = true;
      return true;
    }
    if (!make_room_for(sequence)) return false;
  }
}

// One row needed blocks: all rows get theirs now, so that patches of many rows share one step. Not
// when blocks are short.
void Scheduler::Impl::top_up_decode_rows() {
  const int32_t bs = index.block_size();
  const int32_t per_row = (config.blocks_ahead_tokens + bs - 1) / bs + 1;
  for (int32_t g = 0; g < index.num_groups(); ++g) {
    if (index.available(g) < per_row * static_cast<int32_t>(running.size())) return;
  }
  for (Sequence* sequence : running) {
    if (!sequence->ready_to_decode()) continue;
    index.cover(sequence->kv, blocks_ahead_len(*sequence));
  }
}

bool Scheduler::Impl::make_room_for(Sequence& sequence) {
  // Blocks that come back by themselves: wait for those before anybody has to give way.
  if (!leaving.empty()) return false;
  const auto lacks = [&](int32_t g) {
    return sequence.kv.groups[g].size() <= sequence.computed_len / index.block_size();
  };
  for (const Sequence* row : running) {
    if (row->exhausted()) return false;
    for (const SequenceKv::Deferred& entry : row->kv.deferred) {
      if (lacks(entry.group)) return false;
    }
  }
  if (running.size() == 1) return false;  // resolve_stall() ends it once nothing is in flight
  admission.on_preempted(running);
  // The latest give way, enough of them that each row left can take one more block. The oldest
  // never does.
  std::vector<int32_t> gained(index.num_groups(), 0);
  const auto enough = [&] {
    for (int32_t g = 0; g < index.num_groups(); ++g) {
      if (lacks(g) && gained[g] < static_cast<int32_t>(running.size())) return false;
    }
    return true;
  };
  bool self = false;
  do {
    Sequence& victim = *running.back();
    self = &victim == &sequence;
    for (int32_t g = 0; g < index.num_groups(); ++g)
      gained[g] += index.num_reclaimable(victim.kv, g);
    preempt(victim);
  } while (running.size() > 1 && !self && !enough());
  return !self && leaving.empty();
}

bool Scheduler::Impl::resolve_stall() {
  if (inflight.size() > 1 || running.empty() || masks_missing)
    return false;  // the back of `inflight` is the step being planned; masks come by themselves
  CHECK(leaving.empty());
  if (running.size() > 1) {
    admission.on_preempted(running);
    preempt(*running.back());
    return true;
  }
  SequenceUpdate update;
  update.finish = FinishReason::kLength;
  finish(*running.front(), std::move(update));
  return true;
}

void Scheduler::Impl::preempt(Sequence& sequence) {
  admission_closed = true;
  ++stats.preemptions;
  sequence.stream->num_preemptions.fetch_add(1, std::memory_order_relaxed);
  leave_running(sequence, SequenceState::kPreempting);
}

}  // namespace tailrace
