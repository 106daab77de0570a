// BlockIndex: owns the free lists of all KV groups and of state checkpoints, and the radix tree, and
// gives sequences their blocks. Every block is in exactly one place: free, in the tree, or owned by
// one sequence; so is every checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/request.h"
#include "kv/block_allocator.h"
#include "kv/kv_index.h"
#include "kv/radix_tree.h"
#include "kv/sequence_kv.h"

namespace tailrace {

// The tokens of a sequence with the content hash of every whole block of them.
struct KeyedTokens {
  std::span<const TokenId> tokens;
  std::span<const uint64_t> hashes;  // [tokens.size() / block_size]
  const std::string& salt;
};

// A usable cached prefix; valid until the next call that changes the index.
struct PrefixMatch {
  int32_t num_blocks = 0;
  int32_t shared_blocks = 0;          // in the tree, whether or not every group could go on from there
  std::vector<int32_t> path;          // [num_blocks] nodes
  std::vector<int32_t> first_held;    // [group] first block index to map: 0 for full groups
  std::vector<int32_t> num_unlocked;  // [group] matched handles that nobody locks yet (they count
                                      // as available until adopted)
};

class BlockIndex {
 public:
  explicit BlockIndex(KvIndexConfig config);

  const KvIndexConfig& config() const { return config_; }
  int32_t num_groups() const { return static_cast<int32_t>(config_.groups.size()); }
  int32_t block_size() const { return config_.block_size; }
  int32_t total(int32_t group) const { return allocators_[group].total(); }
  // Blocks that can be handed out now: free ones and evictable ones.
  int32_t available(int32_t group) const {
    return allocators_[group].num_free() + tree_.num_evictable(group);
  }
  // Whole blocks that hold `len` tokens.
  int64_t blocks_for(int64_t len) const {
    return (len + config_.block_size - 1) / config_.block_size;
  }
  // Most blocks a lone sequence maps in a group while it computes `q_len` tokens at a time and ends
  // at `len` tokens.
  int32_t max_blocks(int32_t group, int64_t len, int32_t q_len) const;

  // The longest cached prefix of at most max_len tokens that every group can serve: full groups all
  // of it, window groups the last min(W - 1, L) tokens of it. With recurrent layers it ends at a
  // checkpoint.
  PrefixMatch match(const KeyedTokens& key, int32_t max_len) const;
  // Maps the match into an empty sequence and locks it.
  void adopt(SequenceKv& kv, const PrefixMatch& match);

  // Extends every group's table to cover want_len tokens, as far as blocks can be had. Returns the
  // tokens covered by all groups, at most want_len.
  int32_t cover(SequenceKv& kv, int32_t want_len);
  // Tokens that the tables of all groups cover.
  int32_t covered_len(const SequenceKv& kv) const;

  // Whether states are kept at all, and whether one could be now.
  bool keeps_checkpoints() const { return config_.states.num_checkpoints > 0 && config_.prefix_cache; }
  bool can_checkpoint(const SequenceKv& kv) const;
  // A checkpoint for the state behind `len` tokens (whole blocks), which the step being planned
  // saves: its number, or 0 where none can be had. insert() gives it to the tree.
  int32_t take_checkpoint(SequenceKv& kv, int32_t len);
  // The checkpoint that the first step of the sequence, `step`, starts from; 0: none was matched.
  int32_t take_source(SequenceKv& kv, uint64_t step);

  // Blocks of a group that become available when this sequence releases its own.
  int32_t num_reclaimable(const SequenceKv& kv, int32_t group) const;

  // The next query of the sequence will be at position next_pos: window groups give up the blocks
  // wholly before its window, once last_step (the last planned step of the sequence) has ended; at
  // once when `in_flight` is false.
  void expire(SequenceKv& kv, int32_t next_pos, uint64_t last_step, bool in_flight);

  // Gives the first num_blocks blocks (their KV written or to be written by launched steps) to the
  // tree. Blocks that the tree has already are given up once last_step has ended, and the table
  // points at the tree's.
  void insert(SequenceKv& kv, const KeyedTokens& key, int32_t num_blocks, uint64_t last_step,
              bool in_flight);

  // All steps up to completed_step have ended.
  void settle(SequenceKv& kv, uint64_t completed_step);
  // Releases everything; no launched step may use the sequence any more. `leak` is the fault
  // kAbortLeaks.
  void release(SequenceKv& kv, bool leak = false);

  // Evicts all handles that nobody locks; how many blocks became free.
  int64_t flush();

  KvGroupUsage usage(int32_t group) const;
  KvGroupUsage checkpoint_usage() const;
  // "" or what is broken, given all sequences that hold blocks.
  std::string check_invariants(std::span<const SequenceKv* const> sequences) const;

 private:
  int32_t state_group() const { return num_groups(); }
  void share_checkpoint(SequenceKv& kv, int32_t len, int32_t node, uint64_t last_step, bool in_flight);
  std::string check_states(std::span<const SequenceKv* const> sequences) const;
  bool reclaim(int32_t group);  // one more free block by eviction
  void release_entries(SequenceKv& kv, int32_t group, int32_t upto);
  void share_block(SequenceKv& kv, int32_t group, int32_t index, int32_t node, uint64_t last_step,
                   bool in_flight);

  KvIndexConfig config_;
  std::vector<BlockAllocator> allocators_;  // [group]; then that of checkpoints
  RadixTree tree_;
  std::vector<RadixTree::FreedBlock> freed_;  // scratch
};

}  // namespace tailrace
