// SequenceKv: which KV blocks one sequence maps, per group, and which of them the radix tree owns.
// Plain state: only BlockIndex changes it.
#pragma once

#include <cstdint>
#include <vector>

namespace tailrace {

struct SequenceKv {
  // Block table of one group. Entries below first_held are -1 (released or never mapped: before the
  // window).
  struct Group {
    std::vector<int32_t> blocks;  // [block index of the sequence]
    int32_t first_held = 0;       // entries [first_held, blocks.size()) are held
    int32_t expired = 0;  // entries below are before the window of every step still to be planned
    int32_t dirty_begin = 0;  // entries [dirty_begin, dirty_end) differ from the device's table
    int32_t dirty_end = 0;

    int32_t size() const { return static_cast<int32_t>(blocks.size()); }
    int32_t num_held() const { return size() - first_held; }
    void mark_dirty(int32_t begin, int32_t end) {
      if (dirty_begin == dirty_end) {
        dirty_begin = begin;
        dirty_end = end;
        return;
      }
      dirty_begin = begin < dirty_begin ? begin : dirty_begin;
      dirty_end = end > dirty_end ? end : dirty_end;
    }
  };

  // What may be released once the step that may still read it has ended.
  struct Deferred {
    uint64_t step;
    int32_t group;
    int32_t block;  // a duplicate of the tree's block, or -1: entries below `expired_upto`
    int32_t expired_upto;
  };

  // A saved state that the tree does not have yet: planned steps write it behind `len` tokens.
  struct Checkpoint {
    int32_t id;
    int32_t len;
  };
  // A node whose checkpoint a planned step reads or writes: locked until that step has ended.
  struct LockedState {
    uint64_t step;
    int32_t node;
  };

  // Tree nodes of block indices [0, path.size()): held entries there are the node's handle, locked
  // once by this sequence; held entries beyond are owned by this sequence alone. The last node is
  // pinned.
  std::vector<int32_t> path;
  std::vector<Group> groups;
  std::vector<Deferred> deferred;  // in step order
  std::vector<Checkpoint> checkpoints;     // by len
  std::vector<LockedState> locked_states;  // in step order
  int32_t source_node = -1;  // whose checkpoint, locked, its first step is to start from

  bool empty() const {
    for (const Group& group : groups) {
      if (!group.blocks.empty()) return false;
    }
    return path.empty() && deferred.empty() && checkpoints.empty() && locked_states.empty() && source_node < 0;
  }
};

}  // namespace tailrace
