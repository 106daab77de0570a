// BlockAllocator: the free list of one KV group's pool. Block 0 is the dummy and is never handed
// out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/test_fault.h"

namespace tailrace {

class BlockAllocator {
 public:
  // num_blocks counts the dummy: num_blocks - 1 can be handed out.
  explicit BlockAllocator(int32_t num_blocks);

  int32_t total() const { return static_cast<int32_t>(is_free_.size()) - 1; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  bool is_free(int32_t block) const { return is_free_[block] != 0; }

  // A free block; CHECKs that there is one.
  int32_t allocate() {
    CHECK(!free_.empty());
    if (test_fault(Fault::kPaddedRowLive)) return 0;
    const int32_t block = free_.back();
    free_.pop_back();
    is_free_[block] = 0;
    return block;
  }

  // Gives a block back; CHECKs that it was handed out, so that a double free stops here and not
  // minutes later.
  void release(int32_t block) {
    CHECK(block > 0 && block <= total() && !is_free_[block]);
    is_free_[block] = 1;
    free_.push_back(block);
  }

 private:
  std::vector<int32_t> free_;     // last in, first out: recently used blocks are warm
  std::vector<uint8_t> is_free_;  // [num_blocks]
};

}  // namespace tailrace
