#include "kv/block_allocator.h"

namespace tailrace {

BlockAllocator::BlockAllocator(int32_t num_blocks) {
  CHECK(num_blocks >= 1);
  is_free_.assign(num_blocks, 1);
  is_free_[0] = 0;
  free_.reserve(num_blocks - 1);
  for (int32_t block = num_blocks - 1; block >= 1; --block) free_.push_back(block);
}

}  // namespace tailrace
