#include "kv/block_index.h"

#include <algorithm>

#include "base/check.h"
#include "base/test_fault.h"

namespace tailrace {
namespace {

std::vector<int32_t> windows_of(const KvIndexConfig& config) {
  std::vector<int32_t> windows;
  for (const KvGroupConfig& group : config.groups) windows.push_back(group.window);
  if (config.states.recurrent) windows.push_back(1);  // not full: most nodes have no checkpoint
  return windows;
}

// First block index that a query at `pos` still sees in a group with this window.
int32_t first_visible_block(int32_t pos, int32_t window, int32_t block_size) {
  if (window == 0) return 0;
  int32_t keys_before = window - 1;  // the window counts the query itself
  if (test_fault(Fault::kWindowOffByOne)) keys_before -= 1;
  return std::max(0, pos - keys_before) / block_size;
}

}  // namespace

BlockIndex::BlockIndex(KvIndexConfig config)
    : config_(std::move(config)), tree_(config_.block_size, windows_of(config_)) {
  for (const KvGroupConfig& group : config_.groups) allocators_.emplace_back(group.num_blocks);
  if (!config_.states.recurrent) return;
  CHECK(config_.states.checkpoint_interval % config_.block_size == 0);
  allocators_.emplace_back(config_.states.num_checkpoints + 1);
}

int32_t BlockIndex::max_blocks(int32_t group, int64_t len, int32_t q_len) const {
  const int64_t window = config_.groups[group].window;
  if (window == 0) return static_cast<int32_t>(blocks_for(len));
  return static_cast<int32_t>(std::min(blocks_for(len), blocks_for(window - 1 + q_len) + 1));
}

PrefixMatch BlockIndex::match(const KeyedTokens& key, int32_t max_len) const {
  const int32_t bs = config_.block_size;
  PrefixMatch match;
  match.first_held.assign(num_groups(), 0);
  match.num_unlocked.assign(num_groups(), 0);
  if (!config_.prefix_cache) return match;
  int32_t node = tree_.find_root(key.salt);
  std::vector<int32_t> run(num_groups(), 0);  // nodes with a handle, ending here
  const int32_t max_blocks = max_len / bs;
  for (int32_t i = 0; i < max_blocks && node != RadixTree::kNone; ++i) {
    node = tree_.find_child(node, key.hashes[i], key.tokens.subspan(size_t(i) * bs, bs));
    if (node == RadixTree::kNone) break;
    match.path.push_back(node);
    match.shared_blocks = i + 1;
    bool usable = !config_.states.recurrent || tree_.handle(node, state_group()) != RadixTree::kNone ||
                  test_fault(Fault::kCheckpointUnchecked);
    for (int32_t g = 0; g < num_groups(); ++g) {
      run[g] = tree_.handle(node, g) == RadixTree::kNone ? 0 : run[g] + 1;
      const int32_t first = first_visible_block((i + 1) * bs, config_.groups[g].window, bs);
      usable = usable && (run[g] >= i + 1 - first || test_fault(Fault::kWindowMatchUnchecked));
    }
    if (usable) match.num_blocks = i + 1;
  }
  match.path.resize(match.num_blocks);
  for (int32_t g = 0; g < num_groups(); ++g) {
    match.first_held[g] = first_visible_block(match.num_blocks * bs, config_.groups[g].window, bs);
    for (int32_t i = match.first_held[g]; i < match.num_blocks; ++i) {
      match.num_unlocked[g] +=
          tree_.handle(match.path[i], g) != RadixTree::kNone && tree_.locks(match.path[i], g) == 0;
    }
  }
  return match;
}

void BlockIndex::adopt(SequenceKv& kv, const PrefixMatch& match) {
  CHECK(kv.empty());
  kv.groups.resize(num_groups());
  kv.path = match.path;
  if (!kv.path.empty()) tree_.pin(kv.path.back());
  for (int32_t g = 0; g < num_groups(); ++g) {
    SequenceKv::Group& group = kv.groups[g];
    group.blocks.assign(match.num_blocks, -1);
    group.first_held = group.expired = match.first_held[g];
    for (int32_t i = group.first_held; i < match.num_blocks; ++i) {
      if (tree_.handle(kv.path[i], g) == RadixTree::kNone)
        continue;  // only under kWindowMatchUnchecked
      tree_.lock(kv.path[i], g);
      group.blocks[i] = tree_.handle(kv.path[i], g);
    }
    if (match.num_blocks > group.first_held) group.mark_dirty(group.first_held, match.num_blocks);
  }
  if (!config_.states.recurrent || kv.path.empty()) return;
  if (tree_.handle(kv.path.back(), state_group()) == RadixTree::kNone) return;  // only under kCheckpointUnchecked
  kv.source_node = kv.path.back();
  tree_.lock(kv.source_node, state_group());
}

bool BlockIndex::reclaim(int32_t group) {
  while (allocators_[group].num_free() == 0) {
    freed_.clear();
    if (!tree_.evict(group, freed_)) return false;
    for (const RadixTree::FreedBlock& block : freed_) allocators_[block.group].release(block.block);
  }
  return true;
}

int32_t BlockIndex::cover(SequenceKv& kv, int32_t want_len) {
  const auto want_blocks = static_cast<int32_t>(blocks_for(want_len));
  for (int32_t g = 0; g < num_groups(); ++g) {
    SequenceKv::Group& group = kv.groups[g];
    const int32_t before = group.size();
    while (group.size() < want_blocks && reclaim(g))
      group.blocks.push_back(allocators_[g].allocate());
    if (group.size() > before) group.mark_dirty(before, group.size());
  }
  return std::min(want_len, covered_len(kv));
}

int32_t BlockIndex::covered_len(const SequenceKv& kv) const {
  int32_t blocks = kv.groups[0].size();
  for (const SequenceKv::Group& group : kv.groups) blocks = std::min(blocks, group.size());
  return blocks * config_.block_size;
}

int32_t BlockIndex::num_reclaimable(const SequenceKv& kv, int32_t g) const {
  const SequenceKv::Group& group = kv.groups[g];
  int32_t count = 0;
  for (int32_t i = group.first_held; i < group.size(); ++i) {
    if (group.blocks[i] < 0) continue;
    count += i >= static_cast<int32_t>(kv.path.size()) || tree_.locks(kv.path[i], g) == 1;
  }
  return count;
}

void BlockIndex::release_entries(SequenceKv& kv, int32_t g, int32_t upto) {
  SequenceKv::Group& group = kv.groups[g];
  const int32_t end = std::min(upto, group.size());
  for (int32_t i = group.first_held; i < end; ++i) {
    if (group.blocks[i] < 0) continue;
    if (i < static_cast<int32_t>(kv.path.size())) {
      tree_.unlock(kv.path[i], g);
    } else {
      allocators_[g].release(group.blocks[i]);
    }
    group.blocks[i] = -1;
  }
  group.first_held = std::max(group.first_held, end);
}

void BlockIndex::expire(SequenceKv& kv, int32_t next_pos, uint64_t last_step, bool in_flight) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const int32_t window = config_.groups[g].window;
    if (window == 0) continue;
    SequenceKv::Group& group = kv.groups[g];
    const int32_t upto = first_visible_block(next_pos, window, config_.block_size);
    if (upto <= group.expired) continue;
    group.expired = upto;
    if (in_flight && !test_fault(Fault::kReleaseInFlight)) {
      kv.deferred.push_back({last_step, g, -1, upto});
    } else {
      release_entries(kv, g, upto);
    }
  }
}

void BlockIndex::share_block(SequenceKv& kv, int32_t g, int32_t index, int32_t node,
                             uint64_t last_step, bool in_flight) {
  SequenceKv::Group& group = kv.groups[g];
  const int32_t own = group.blocks[index];
  if (own < 0) return;  // already before the window
  const int32_t shared = tree_.handle(node, g);
  if (shared == RadixTree::kNone) {
    tree_.set_handle(node, g, own);
    return;
  }
  if (test_fault(Fault::kKeepDuplicateBlocks)) {
    allocators_[g].release(own);  // but the table keeps it
    return;
  }
  tree_.lock(node, g);
  group.blocks[index] = shared;
  group.mark_dirty(index, index + 1);
  if (in_flight) {
    kv.deferred.push_back({last_step, g, own, 0});
  } else {
    allocators_[g].release(own);
  }
}

void BlockIndex::insert(SequenceKv& kv, const KeyedTokens& key, int32_t num_blocks,
                        uint64_t last_step, bool in_flight) {
  const int32_t bs = config_.block_size;
  const int32_t first = static_cast<int32_t>(kv.path.size());
  num_blocks = std::min(num_blocks, covered_len(kv) / bs);
  if (!config_.prefix_cache || num_blocks <= first) return;
  int32_t node = first > 0 ? kv.path.back() : tree_.find_or_add_root(key.salt);
  for (int32_t i = first; i < num_blocks; ++i) {
    const std::span<const TokenId> tokens = key.tokens.subspan(size_t(i) * bs, bs);
    int32_t child = tree_.find_child(node, key.hashes[i], tokens);
    if (child == RadixTree::kNone) child = tree_.add_child(node, key.hashes[i], tokens);
    for (int32_t g = 0; g < num_groups(); ++g) share_block(kv, g, i, child, last_step, in_flight);
    share_checkpoint(kv, (i + 1) * bs, child, last_step, in_flight);
    kv.path.push_back(child);
    node = child;
  }
  tree_.pin(node);
  if (first > 0) tree_.unpin(kv.path[first - 1]);
}

void BlockIndex::settle(SequenceKv& kv, uint64_t completed_step) {
  size_t done = 0;
  for (; done < kv.deferred.size() && kv.deferred[done].step <= completed_step; ++done) {
    const SequenceKv::Deferred& entry = kv.deferred[done];
    if (entry.block >= 0) {
      allocators_[entry.group].release(entry.block);
    } else {
      release_entries(kv, entry.group, entry.expired_upto);
    }
  }
  kv.deferred.erase(kv.deferred.begin(), kv.deferred.begin() + done);
  std::erase_if(kv.locked_states, [&](const SequenceKv::LockedState& locked) {
    if (locked.step > completed_step) return false;
    tree_.unlock(locked.node, state_group());
    return true;
  });
}

void BlockIndex::release(SequenceKv& kv, bool leak) {
  for (const SequenceKv::Deferred& entry : kv.deferred) {
    if (entry.block >= 0) allocators_[entry.group].release(entry.block);
  }
  for (const SequenceKv::Checkpoint& checkpoint : kv.checkpoints) {
    if (!leak) allocators_[state_group()].release(checkpoint.id);
  }
  for (const SequenceKv::LockedState& locked : kv.locked_states) tree_.unlock(locked.node, state_group());
  if (kv.source_node >= 0) tree_.unlock(kv.source_node, state_group());
  const int32_t num_shared = static_cast<int32_t>(kv.path.size());
  for (int32_t g = 0; g < num_groups(); ++g) {
    SequenceKv::Group& group = kv.groups[g];
    for (int32_t i = group.size() - 1; i >= group.first_held; --i) {  // leaf to root: see RadixTree
      if (group.blocks[i] < 0) continue;
      if (i < num_shared) {
        tree_.unlock(kv.path[i], g);
      } else if (!leak) {
        allocators_[g].release(group.blocks[i]);
      }
    }
  }
  if (num_shared > 0) tree_.unpin(kv.path.back());
  kv = SequenceKv{};
}

int64_t BlockIndex::flush() {
  int64_t num_freed = 0;
  for (int32_t g = 0; g < num_groups(); ++g) {
    freed_.clear();
    while (tree_.evict(g, freed_)) {
    }
    for (const RadixTree::FreedBlock& block : freed_) {
      allocators_[block.group].release(block.block);
      num_freed += block.group != state_group();
    }
  }
  freed_.clear();
  while (config_.states.recurrent && tree_.evict(state_group(), freed_)) {
  }
  for (const RadixTree::FreedBlock& block : freed_) allocators_[block.group].release(block.block);
  return num_freed;
}

KvGroupUsage BlockIndex::usage(int32_t group) const {
  KvGroupUsage usage;
  usage.free = allocators_[group].num_free();
  usage.cached = tree_.num_evictable(group);
  usage.owned = total(group) - usage.free - usage.cached;
  return usage;
}

std::string BlockIndex::check_invariants(std::span<const SequenceKv* const> sequences) const {
  if (std::string broken = tree_.check_invariants(); !broken.empty()) return broken;
  std::vector<int32_t> pins(tree_.capacity(), 0);
  for (const SequenceKv* kv : sequences) {
    if (!kv->path.empty()) ++pins[kv->path.back()];
  }
  for (int32_t node = 0; node < tree_.capacity(); ++node) {
    if (tree_.live(node) && tree_.pins(node) != pins[node])
      return "a node's pins differ from its owners";
  }
  if (std::string broken = check_states(sequences); !broken.empty()) return broken;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const std::string where = " (group " + std::to_string(g) + ")";
    std::vector<int32_t> places(total(g) + 1, 0), locks(tree_.capacity(), 0);
    for (int32_t block = 1; block <= total(g); ++block)
      places[block] += allocators_[g].is_free(block);
    for (const SequenceKv* kv : sequences) {
      for (const SequenceKv::Deferred& entry : kv->deferred) {
        if (entry.group == g && entry.block >= 0) ++places[entry.block];
      }
      if (kv->groups.empty()) continue;
      const SequenceKv::Group& group = kv->groups[g];
      for (int32_t i = 0; i < group.size(); ++i) {
        const int32_t block = group.blocks[i];
        if (block < 0) continue;
        if (i >= static_cast<int32_t>(kv->path.size())) {
          ++places[block];
          continue;
        }
        if (tree_.handle(kv->path[i], g) != block) {
          return "block " + std::to_string(block) + " of a row is not the tree's" + where;
        }
        ++locks[kv->path[i]];
      }
    }
    for (int32_t node = 0; node < tree_.capacity(); ++node) {
      if (!tree_.live(node)) continue;
      if (tree_.handle(node, g) != RadixTree::kNone) ++places[tree_.handle(node, g)];
      if (tree_.locks(node, g) != locks[node])
        return "a node's locks differ from its owners" + where;
    }
    for (int32_t block = 1; block <= total(g); ++block) {
      if (places[block] == 1) continue;
      return "block " + std::to_string(block) + " is in " + std::to_string(places[block]) +
             " places" + where;
    }
  }
  return "";
}

}  // namespace tailrace
