// BlockIndex's checkpoints of recurrent states: handles of one more group of the tree, which most nodes lack. They are
// evicted by an LRU of their own, and a node that loses its blocks loses its checkpoint with them.
#include <algorithm>

#include "base/check.h"
#include "base/test_fault.h"
#include "kv/block_index.h"

namespace tailrace {

bool BlockIndex::can_checkpoint(const SequenceKv& kv) const {
  return keeps_checkpoints() && (available(state_group()) > 0 || !kv.checkpoints.empty());
}

int32_t BlockIndex::take_checkpoint(SequenceKv& kv, int32_t len) {
  CHECK(len > 0 && len % config_.block_size == 0 && (kv.checkpoints.empty() || kv.checkpoints.back().len < len));
  if (!can_checkpoint(kv)) return 0;
  // A long prompt keeps its first ones, which others share, and the last: no more than half of all.
  const size_t most = std::max(1, config_.states.num_checkpoints / 2);
  if (kv.checkpoints.size() >= most || available(state_group()) == 0) {
    kv.checkpoints.back().len = len;  // nobody reads it yet, and its steps run in order
    return kv.checkpoints.back().id;
  }
  CHECK(reclaim(state_group()));
  kv.checkpoints.push_back({allocators_[state_group()].allocate(), len});
  return kv.checkpoints.back().id;
}

int32_t BlockIndex::take_source(SequenceKv& kv, uint64_t step) {
  if (kv.source_node < 0) return 0;
  const int32_t node = std::exchange(kv.source_node, -1);
  const int32_t id = tree_.handle(node, state_group());
  if (test_fault(Fault::kCheckpointReusedEarly)) {
    tree_.unlock(node, state_group());
  } else {
    kv.locked_states.push_back({step, node});
  }
  return id;
}

// What was saved behind `len` tokens goes to their node. Where it has one, that of the first to come stays.
void BlockIndex::share_checkpoint(SequenceKv& kv, int32_t len, int32_t node, uint64_t last_step, bool in_flight) {
  const auto saved = std::find_if(kv.checkpoints.begin(), kv.checkpoints.end(),
                                  [&](const SequenceKv::Checkpoint& checkpoint) { return checkpoint.len == len; });
  if (saved == kv.checkpoints.end()) return;
  const int32_t id = saved->id;
  kv.checkpoints.erase(saved);
  if (tree_.handle(node, state_group()) != RadixTree::kNone) {
    if (in_flight) {
      kv.deferred.push_back({last_step, state_group(), id, 0});
    } else {
      allocators_[state_group()].release(id);
    }
    return;
  }
  tree_.set_handle(node, state_group(), id);
  if (in_flight) {
    kv.locked_states.push_back({last_step, node});
  } else {
    tree_.unlock(node, state_group());
  }
}

KvGroupUsage BlockIndex::checkpoint_usage() const {
  return config_.states.recurrent ? usage(state_group()) : KvGroupUsage{};
}

std::string BlockIndex::check_states(std::span<const SequenceKv* const> sequences) const {
  if (!config_.states.recurrent) return "";
  const int32_t group = state_group();
  std::vector<int32_t> places(total(group) + 1, 0), locks(tree_.capacity(), 0);
  for (int32_t id = 1; id <= total(group); ++id) places[id] += allocators_[group].is_free(id);
  for (const SequenceKv* kv : sequences) {
    for (const SequenceKv::Deferred& entry : kv->deferred) {
      if (entry.group == group) ++places[entry.block];
    }
    for (const SequenceKv::Checkpoint& checkpoint : kv->checkpoints) ++places[checkpoint.id];
    for (const SequenceKv::LockedState& locked : kv->locked_states) ++locks[locked.node];
    if (kv->source_node >= 0) ++locks[kv->source_node];
  }
  for (int32_t node = 0; node < tree_.capacity(); ++node) {
    if (!tree_.live(node)) continue;
    if (tree_.handle(node, group) != RadixTree::kNone) ++places[tree_.handle(node, group)];
    if (tree_.locks(node, group) != locks[node]) return "a checkpoint's locks differ from its owners";
  }
  for (int32_t id = 1; id <= total(group); ++id) {
    if (places[id] != 1) return "checkpoint " + std::to_string(id) + " is in " + std::to_string(places[id]) + " places";
  }
  return "";
}

}  // namespace tailrace
