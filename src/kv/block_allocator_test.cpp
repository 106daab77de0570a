#include "kv/block_allocator.h"

#include <gtest/gtest.h>

#include <set>

namespace tailrace {
namespace {

TEST(BlockAllocator, hands_out_every_block_but_the_dummy_once) {
  BlockAllocator allocator(5);
  EXPECT_EQ(allocator.total(), 4);
  std::set<int32_t> blocks;
  while (allocator.num_free() > 0) blocks.insert(allocator.allocate());
  EXPECT_EQ(blocks, (std::set<int32_t>{1, 2, 3, 4}));
}

TEST(BlockAllocator, a_released_block_comes_back) {
  BlockAllocator allocator(2);
  const int32_t block = allocator.allocate();
  EXPECT_FALSE(allocator.is_free(block));
  allocator.release(block);
  EXPECT_TRUE(allocator.is_free(block));
  EXPECT_EQ(allocator.allocate(), block);
}

TEST(BlockAllocatorDeathTest, a_double_free_stops_at_once) {
  BlockAllocator allocator(3);
  const int32_t block = allocator.allocate();
  allocator.release(block);
  EXPECT_DEATH(allocator.release(block), "check failed");
  EXPECT_DEATH(allocator.release(0), "check failed");
}

}  // namespace
}  // namespace tailrace
