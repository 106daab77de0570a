#include "kv/radix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace tailrace {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t child_key(int32_t parent, uint64_t hash) {
  return mix(hash ^ (uint64_t(parent + 1) << 32));
}

}  // namespace

uint64_t hash_block(std::span<const TokenId> tokens) {
  uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const TokenId token : tokens) {
    hash = (hash ^ uint64_t(uint32_t(token))) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 29;
  }
  return hash;
}

RadixTree::RadixTree(int32_t block_size, std::vector<int32_t> windows)
    : block_size_(block_size),
      num_groups_(static_cast<int32_t>(windows.size())),
      windows_(std::move(windows)) {
  CHECK(block_size_ >= 1 && num_groups_ >= 1);
  lru_.resize(num_groups_);
}

int32_t RadixTree::new_node() {
  int32_t node;
  if (!free_nodes_.empty()) {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  } else {
    node = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
    entries_.resize(entries_.size() + num_groups_);
    tokens_.resize(tokens_.size() + block_size_);
  }
  nodes_[node] = Node{};
  nodes_[node].live = true;
  std::fill_n(entries_.begin() + size_t(node) * num_groups_, num_groups_, GroupEntry{});
  return node;
}

int32_t RadixTree::find_root(const std::string& salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? kNone : it->second;
}

int32_t RadixTree::find_or_add_root(const std::string& salt) {
  const int32_t found = find_root(salt);
  if (found != kNone) return found;
  const int32_t node = new_node();
  nodes_[node].salt = salt;
  roots_.emplace(salt, node);
  return node;
}

int32_t RadixTree::find_child(int32_t parent, uint64_t hash,
                              std::span<const TokenId> tokens) const {
  const auto [first, last] = children_by_key_.equal_range(child_key(parent, hash));
  for (auto it = first; it != last; ++it) {
    const int32_t node = it->second;
    if (nodes_[node].parent != parent) continue;
    if (std::equal(tokens.begin(), tokens.end(), tokens_.begin() + size_t(node) * block_size_))
      return node;
  }
  return kNone;
}

int32_t RadixTree::add_child(int32_t parent, uint64_t hash, std::span<const TokenId> tokens) {
  CHECK(static_cast<int32_t>(tokens.size()) == block_size_);
  const int32_t node = new_node();
  nodes_[node].parent = parent;
  nodes_[node].key = child_key(parent, hash);
  ++nodes_[parent].children;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + size_t(node) * block_size_);
  children_by_key_.emplace(nodes_[node].key, node);
  return node;
}

void RadixTree::set_handle(int32_t node, int32_t group, int32_t block) {
  GroupEntry& entry = at(node, group);
  CHECK(entry.handle == kNone && entry.locks == 0);
  entry.handle = block;
  entry.locks = 1;
  ++lru_[group].handles;
}

void RadixTree::lock(int32_t node, int32_t group) {
  GroupEntry& entry = at(node, group);
  CHECK(entry.handle != kNone);
  if (entry.locks++ == 0) lru_remove(node, group);
}

void RadixTree::unlock(int32_t node, int32_t group) {
  GroupEntry& entry = at(node, group);
  CHECK(entry.locks > 0);
  if (--entry.locks == 0) lru_append(node, group);
}

void RadixTree::unpin(int32_t node) {
  CHECK(nodes_[node].pins > 0);
  if (--nodes_[node].pins == 0) prune(node);
}

bool RadixTree::evict(int32_t group, std::vector<FreedBlock>& freed) {
  const int32_t node = lru_[group].head;
  if (node == kNone) return false;
  if (windows_[group] == 0) {
    // Without its full handle no match can pass the node, so its other handles go too.
    CHECK(nodes_[node].children == 0 && nodes_[node].pins == 0);
    for (int32_t g = 0; g < num_groups_; ++g) {
      if (at(node, g).handle != kNone) drop_handle(node, g, freed);
    }
  } else {
    drop_handle(node, group, freed);
  }
  prune(node);
  return true;
}

void RadixTree::drop_handle(int32_t node, int32_t group, std::vector<FreedBlock>& freed) {
  GroupEntry& entry = at(node, group);
  CHECK(entry.locks == 0);
  freed.push_back({group, entry.handle});
  lru_remove(node, group);
  entry.handle = kNone;
  --lru_[group].handles;
}

void RadixTree::prune(int32_t node) {
  while (node != kNone) {
    const Node& n = nodes_[node];
    if (n.children > 0 || n.pins > 0) return;
    for (int32_t g = 0; g < num_groups_; ++g) {
      if (at(node, g).handle != kNone) return;
    }
    const int32_t parent = n.parent;
    if (parent == kNone) {
      roots_.erase(n.salt);
    } else {
      const auto [first, last] = children_by_key_.equal_range(n.key);
      for (auto it = first; it != last; ++it) {
        if (it->second != node) continue;
        children_by_key_.erase(it);
        break;
      }
      --nodes_[parent].children;
    }
    nodes_[node] = Node{};
    free_nodes_.push_back(node);
    node = parent;
  }
}

void RadixTree::lru_append(int32_t node, int32_t group) {
  Lru& lru = lru_[group];
  GroupEntry& entry = at(node, group);
  entry.prev = lru.tail;
  entry.next = kNone;
  if (lru.tail != kNone)
    at(lru.tail, group).next = node;
  else
    lru.head = node;
  lru.tail = node;
  ++lru.size;
}

void RadixTree::lru_remove(int32_t node, int32_t group) {
  Lru& lru = lru_[group];
  GroupEntry& entry = at(node, group);
  if (entry.prev != kNone)
    at(entry.prev, group).next = entry.next;
  else
    lru.head = entry.next;
  if (entry.next != kNone)
    at(entry.next, group).prev = entry.prev;
  else
    lru.tail = entry.prev;
  entry.prev = entry.next = kNone;
  --lru.size;
}

std::string RadixTree::check_invariants() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  std::vector<int32_t> handles(num_groups_, 0), unlocked(num_groups_, 0);
  for (int32_t node = 0; node < capacity(); ++node) {
    const Node& n = nodes_[node];
    if (!n.live) continue;
    bool needed = n.pins > 0 || n.children > 0;
    if (n.parent != kNone) {
      if (!nodes_[n.parent].live) return "a node's parent is dead";
      ++children[n.parent];
    }
    for (int32_t g = 0; g < num_groups_; ++g) {
      const GroupEntry& entry = at(node, g);
      if (entry.handle == kNone && entry.locks != 0) return "a lock without a handle";
      if (entry.handle == kNone) continue;
      needed = true;
      ++handles[g];
      if (entry.locks == 0) ++unlocked[g];
      if (windows_[g] != 0 || n.parent == kNone || nodes_[n.parent].parent == kNone) continue;
      if (at(n.parent, g).handle == kNone) return "a full handle below a node without one";
      if (entry.locks > at(n.parent, g).locks)
        return "a full handle locked more often than its parent";
    }
    if (!needed && n.parent != kNone) return "a node that nothing needs";
  }
  for (int32_t node = 0; node < capacity(); ++node) {
    if (nodes_[node].live && children[node] != nodes_[node].children) return "a wrong child count";
  }
  for (int32_t g = 0; g < num_groups_; ++g) {
    int32_t length = 0;
    for (int32_t node = lru_[g].head; node != kNone; node = at(node, g).next) ++length;
    if (length != lru_[g].size || unlocked[g] != lru_[g].size)
      return "an LRU list that misses unlocked handles";
    if (handles[g] != lru_[g].handles) return "a wrong handle count";
  }
  return "";
}

}  // namespace tailrace
