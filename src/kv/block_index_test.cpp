#include "kv/block_index.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

struct Tokens {
  std::vector<TokenId> tokens;
  std::vector<uint64_t> hashes;
  std::string salt;
  Tokens(int32_t count, int32_t block_size, TokenId first = 100) {
    for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
    for (int32_t i = 0; i + block_size <= count; i += block_size) {
      hashes.push_back(hash_block({tokens.data() + i, static_cast<size_t>(block_size)}));
    }
  }
  KeyedTokens key() const { return {tokens, hashes, salt}; }
};

std::string check(const BlockIndex& index, std::vector<const SequenceKv*> sequences) {
  return index.check_invariants(sequences);
}

TEST(BlockIndex, covers_as_far_as_blocks_last) {
  BlockIndex index({4, {{0, 6}}, true});
  SequenceKv kv;
  index.adopt(kv, index.match(Tokens(10, 4).key(), 9));
  EXPECT_EQ(index.cover(kv, 10), 10);
  EXPECT_EQ(index.covered_len(kv), 12);
  EXPECT_EQ(kv.groups[0].dirty_end, 3);
  EXPECT_EQ(index.cover(kv, 100), 20);
  EXPECT_EQ(index.available(0), 0);
  EXPECT_EQ(check(index, {&kv}), "");
  index.release(kv);
  EXPECT_EQ(index.available(0), 5);
}

TEST(BlockIndex, a_match_leaves_one_token_to_compute_and_is_pinned) {
  BlockIndex index({4, {{0, 5}}, true});
  const Tokens prompt(8, 4);
  SequenceKv first, second, other;
  index.adopt(first, index.match(prompt.key(), 7));
  index.cover(first, 8);
  index.insert(first, prompt.key(), 2, 1, false);
  index.release(first);
  EXPECT_EQ(index.usage(0).cached, 2);
  const PrefixMatch match = index.match(prompt.key(), 7);
  EXPECT_EQ(match.num_blocks, 1);  // not 2: the last token must be computed
  EXPECT_EQ(match.num_unlocked[0], 1);
  index.adopt(second, match);
  index.adopt(other, index.match(Tokens(4, 4, 900).key(), 3));
  EXPECT_EQ(index.cover(other, 100), 12);  // everything but the matched block
  EXPECT_EQ(check(index, {&second, &other}), "");
}

TEST(BlockIndex, a_window_group_serves_a_prefix_only_with_the_window_before_it) {
  // Window 6, block 4: a match of L tokens needs positions [L - 5, L).
  BlockIndex index({4, {{0, 20}, {6, 20}}, true});
  const Tokens prompt(24, 4);
  SequenceKv kv;
  index.adopt(kv, index.match(prompt.key(), 23));
  index.cover(kv, 24);
  index.expire(kv, 17, 1, false);  // sees 12..17: blocks 0, 1 and 2 go
  EXPECT_EQ(kv.groups[1].first_held, 3);
  index.insert(kv, prompt.key(), 6, 1, false);
  EXPECT_EQ(check(index, {&kv}), "");
  index.release(kv);
  EXPECT_EQ(index.match(prompt.key(), 23).num_blocks, 5);  // needs 15..19: blocks 3 and 4
  EXPECT_EQ(index.match(prompt.key(), 19).num_blocks, 0);  // 16 would need block 2; so would 12
  EXPECT_EQ(index.match(prompt.key(), 23).first_held[1], 3);
}

TEST(BlockIndex, window_blocks_wait_for_the_step_that_reads_them) {
  BlockIndex index({4, {{4, 10}}, true});
  SequenceKv kv;
  index.adopt(kv, index.match(Tokens(12, 4).key(), 11));
  index.cover(kv, 12);
  index.expire(kv, 8, 5, true);
  EXPECT_EQ(index.usage(0).free, 6);
  index.settle(kv, 4);
  EXPECT_EQ(index.usage(0).free, 6);
  index.settle(kv, 5);
  EXPECT_EQ(index.usage(0).free, 7);  // block 0; position 8 still sees 5..7
}

TEST(BlockIndex, a_duplicate_is_repointed_and_freed_after_its_step) {
  BlockIndex index({4, {{0, 10}}, true});
  const Tokens prompt(8, 4);
  SequenceKv a, b;
  for (SequenceKv* kv : {&a, &b}) {
    index.adopt(*kv, index.match(prompt.key(), 7));
    index.cover(*kv, 8);
    kv->groups[0].dirty_begin = kv->groups[0].dirty_end = 0;
  }
  index.insert(a, prompt.key(), 2, 1, true);
  index.insert(b, prompt.key(), 2, 1, true);
  EXPECT_EQ(a.groups[0].blocks, b.groups[0].blocks);
  EXPECT_EQ(b.groups[0].dirty_end, 2);
  EXPECT_EQ(a.groups[0].dirty_end, 0);
  EXPECT_EQ(index.usage(0).free, 5);
  EXPECT_EQ(check(index, {&a, &b}), "");
  index.settle(b, 1);
  EXPECT_EQ(index.usage(0).free, 7);
  EXPECT_EQ(check(index, {&a, &b}), "");
  index.release(a);
  index.release(b);
  index.flush();
  EXPECT_EQ(index.usage(0).free, 9);
}

TEST(BlockIndex, the_naive_cache_keeps_nothing) {
  BlockIndex index({4, {{0, 10}}, false});
  const Tokens prompt(8, 4);
  SequenceKv kv;
  index.adopt(kv, index.match(prompt.key(), 7));
  index.cover(kv, 8);
  index.insert(kv, prompt.key(), 2, 1, false);
  index.release(kv);
  EXPECT_EQ(index.usage(0).free, 9);
}

TEST(BlockIndex, counts_the_blocks_a_lone_sequence_needs) {
  const BlockIndex index({16, {{0, 10}, {32, 10}}, true});
  EXPECT_EQ(index.max_blocks(0, 33, 1), 3);
  EXPECT_EQ(index.max_blocks(1, 33, 1), 3);
  EXPECT_EQ(index.max_blocks(1, 1000, 1),
            3);  // 31 keys before the query touch at most 3 blocks with it
  EXPECT_EQ(index.max_blocks(1, 1000, 64), 7);
}

}  // namespace
}  // namespace tailrace
