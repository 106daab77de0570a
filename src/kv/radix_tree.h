// RadixTree: which KV blocks hold which token prefixes. One node per whole block of tokens; a node
// holds one block handle per KV group, which may be absent (a tombstone). The checkpoints of
// recurrent states behind that many tokens are handles of one more group. Handles with no lock are
// in their group's LRU list and can be evicted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/request.h"

namespace tailrace {

// Content hash of one block of tokens; equal hashes are always verified token by token.
uint64_t hash_block(std::span<const TokenId> tokens);

// Lock discipline that makes eviction O(1): who maps a path locks every node of it in each full
// group, and unlocks from the leaf to the root. So a node is never less recent than its
// descendants, and the head of a full group's LRU list is always a leaf.
class RadixTree {
 public:
  static constexpr int32_t kNone = -1;

  struct FreedBlock {
    int32_t group;
    int32_t block;
  };

  // windows: one entry per group, 0 for full groups: nobody matches past a node without theirs.
  RadixTree(int32_t block_size, std::vector<int32_t> windows);

  // The root of a salt's tree, or kNone.
  int32_t find_root(const std::string& salt) const;
  int32_t find_or_add_root(const std::string& salt);
  // The child of `parent` that holds exactly these block_size tokens, or kNone.
  int32_t find_child(int32_t parent, uint64_t hash, std::span<const TokenId> tokens) const;
  // A new child without handles; pin it or give it a handle before the next eviction.
  int32_t add_child(int32_t parent, uint64_t hash, std::span<const TokenId> tokens);

  // The block of a node in a group, or kNone.
  int32_t handle(int32_t node, int32_t group) const { return at(node, group).handle; }
  int32_t locks(int32_t node, int32_t group) const { return at(node, group).locks; }
  int32_t pins(int32_t node) const { return nodes_[node].pins; }

  // Gives the node a block in a group where it had none; the giver holds one lock.
  void set_handle(int32_t node, int32_t group, int32_t block);
  // A locked handle is not evicted. The node must have a handle in the group.
  void lock(int32_t node, int32_t group);
  void unlock(int32_t node, int32_t group);
  // A pinned node is kept, with or without handles.
  void pin(int32_t node) { ++nodes_[node].pins; }
  void unpin(int32_t node);

  // Evicts the least recently used unlocked handle of the group; a full group's eviction removes
  // the node with all its handles. Appends what was freed; false when nothing can be evicted.
  bool evict(int32_t group, std::vector<FreedBlock>& freed);

  int32_t num_evictable(int32_t group) const { return lru_[group].size; }
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size() - free_nodes_.size()); }
  // For invariant checks: ids are 0..capacity()-1, live() says which exist.
  int32_t capacity() const { return static_cast<int32_t>(nodes_.size()); }
  bool live(int32_t node) const { return nodes_[node].live; }
  // "" or what is broken in the tree itself.
  std::string check_invariants() const;

 private:
  struct Node {
    int32_t parent = kNone;
    int32_t children = 0;
    int32_t pins = 0;
    bool live = false;
    uint64_t key = 0;  // of children_by_key_; roots have none
    std::string salt;  // roots only
  };
  struct GroupEntry {
    int32_t handle = kNone;
    int32_t locks = 0;
    int32_t prev = kNone, next = kNone;  // LRU list, oldest first
  };
  struct Lru {
    int32_t head = kNone, tail = kNone, size = 0, handles = 0;
  };

  GroupEntry& at(int32_t node, int32_t group) {
    return entries_[size_t(node) * num_groups_ + group];
  }
  const GroupEntry& at(int32_t node, int32_t group) const {
    return entries_[size_t(node) * num_groups_ + group];
  }
  int32_t new_node();
  void lru_append(int32_t node, int32_t group);
  void lru_remove(int32_t node, int32_t group);
  void drop_handle(int32_t node, int32_t group, std::vector<FreedBlock>& freed);
  void prune(int32_t node);  // removes the node and its ancestors as far as nothing needs them

  const int32_t block_size_;
  const int32_t num_groups_;
  const std::vector<int32_t> windows_;
  std::vector<Node> nodes_;
  std::vector<GroupEntry> entries_;  // [node][group]
  std::vector<TokenId> tokens_;      // [node][block_size]
  std::vector<int32_t> free_nodes_;
  std::vector<Lru> lru_;  // [group]
  std::unordered_map<std::string, int32_t> roots_;
  std::unordered_multimap<uint64_t, int32_t> children_by_key_;
};

}  // namespace tailrace
