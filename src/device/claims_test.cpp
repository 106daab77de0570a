#include "device/cuda/claims.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tailrace::cuda {
namespace {

// A GPU that has `free` bytes, allocating whole units of 2 MiB as the driver does.
struct Memory {
  size_t free, claimed = 0;
  std::vector<Chunk> chunks;

  bool claim(size_t bytes) {
    bytes = rounded_claim(bytes);
    Chunk* chunk = chunk_for(chunks, bytes, [this](size_t wanted) -> Chunk {
      constexpr size_t kUnit = size_t{2} << 20;
      const size_t taken = (wanted + kUnit - 1) / kUnit * kUnit;
      if (taken > free) return {};
      free -= taken;
      return {nullptr, wanted, 0};
    });
    if (chunk == nullptr) return false;
    chunk->take(bytes);
    claimed += bytes;
    return true;
  }
};

// Llama 3 70B in fp8, layer by layer: with one chunk that all claims were cut from, in turn, 16 GiB of ends were lost.
TEST(Claims, take_little_more_than_is_claimed) {
  constexpr size_t kAll = size_t{142000} << 20;
  Memory memory{kAll};
  const size_t hidden = 8192, intermediate = 28672, heads = 64 * 128, kv = 8 * 128;
  for (int layer = 0; layer < 80; ++layer) {
    for (const size_t rows : {heads, kv, kv}) ASSERT_TRUE(memory.claim(rows * hidden) && memory.claim(rows * 4));
    ASSERT_TRUE(memory.claim(heads * hidden) && memory.claim(hidden * 4));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(memory.claim(intermediate * hidden) && memory.claim(intermediate * 4));
    ASSERT_TRUE(memory.claim(hidden * 4) && memory.claim(hidden * 4));
  }
  ASSERT_TRUE(memory.claim(size_t{128256} * hidden * 2) && memory.claim(size_t{128256} * hidden * 2));
  EXPECT_LT(kAll - memory.free - memory.claimed, kChunkBytes + kAll / 200);
}

TEST(Claims, the_last_of_the_memory_is_given_out_too) {
  Memory memory{size_t{100} << 20};
  int claims = 0;
  while (memory.claim(size_t{10} << 20)) ++claims;  // no room for a chunk that they could share
  EXPECT_EQ(claims, 10);
}

}  // namespace
}  // namespace tailrace::cuda
