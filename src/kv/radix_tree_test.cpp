#include "kv/radix_tree.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

constexpr int32_t kBlock = 4;

std::vector<TokenId> block_of(TokenId first) { return {first, first + 1, first + 2, first + 3}; }

// Adds a child with one handle per group, each locked once.
int32_t add(RadixTree& tree, int32_t parent, TokenId first, std::vector<int32_t> blocks) {
  const std::vector<TokenId> tokens = block_of(first);
  const int32_t node = tree.add_child(parent, hash_block(tokens), tokens);
  for (size_t g = 0; g < blocks.size(); ++g)
    tree.set_handle(node, static_cast<int32_t>(g), blocks[g]);
  return node;
}

int32_t find(const RadixTree& tree, int32_t parent, TokenId first) {
  const std::vector<TokenId> tokens = block_of(first);
  return tree.find_child(parent, hash_block(tokens), tokens);
}

std::vector<int32_t> evicted_blocks(RadixTree& tree, int32_t group) {
  std::vector<RadixTree::FreedBlock> freed;
  tree.evict(group, freed);
  std::vector<int32_t> blocks;
  for (const RadixTree::FreedBlock& block : freed) blocks.push_back(block.block);
  return blocks;
}

TEST(RadixTree, finds_children_by_content_below_their_parent) {
  RadixTree tree(kBlock, {0});
  const int32_t root = tree.find_or_add_root("");
  const int32_t a = add(tree, root, 10, {1});
  const int32_t b = add(tree, a, 20, {2});
  EXPECT_EQ(find(tree, root, 10), a);
  EXPECT_EQ(find(tree, a, 20), b);
  EXPECT_EQ(find(tree, root, 20), RadixTree::kNone);
  EXPECT_EQ(find(tree, a, 21), RadixTree::kNone);
}

TEST(RadixTree, equal_hashes_are_told_apart_by_their_tokens) {
  RadixTree tree(kBlock, {0});
  const int32_t root = tree.find_or_add_root("");
  const std::vector<TokenId> one = block_of(10), two = block_of(20), three = block_of(30);
  const int32_t a = tree.add_child(root, 7, one);
  tree.pin(a);
  const int32_t b = tree.add_child(root, 7, two);
  tree.pin(b);
  EXPECT_EQ(tree.find_child(root, 7, one), a);
  EXPECT_EQ(tree.find_child(root, 7, two), b);
  EXPECT_EQ(tree.find_child(root, 7, three), RadixTree::kNone);
}

TEST(RadixTree, salts_have_roots_of_their_own) {
  RadixTree tree(kBlock, {0});
  const int32_t plain = tree.find_or_add_root("");
  const int32_t salted = tree.find_or_add_root("s");
  add(tree, plain, 10, {1});
  EXPECT_NE(plain, salted);
  EXPECT_EQ(find(tree, salted, 10), RadixTree::kNone);
  EXPECT_EQ(tree.find_root("t"), RadixTree::kNone);
}

TEST(RadixTree, evict_skips_locked_nodes_and_goes_leaf_first) {
  RadixTree tree(kBlock, {0});
  const int32_t root = tree.find_or_add_root("");
  const int32_t a = add(tree, root, 10, {1});
  const int32_t b = add(tree, a, 20, {2});
  const int32_t c = add(tree, a, 30, {3});
  EXPECT_TRUE(evicted_blocks(tree, 0).empty());
  tree.lock(a, 0);  // a is locked by the owners of b and of c
  tree.unlock(b, 0);
  tree.unlock(a, 0);
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{2}));
  EXPECT_TRUE(evicted_blocks(tree, 0).empty());
  tree.unlock(c, 0);
  tree.unlock(a, 0);
  EXPECT_EQ(tree.check_invariants(), "");
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{3}));
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{1}));
  EXPECT_EQ(tree.num_nodes(), 0);  // the root goes with its last child
}

TEST(RadixTree, the_least_recently_released_path_goes_first) {
  RadixTree tree(kBlock, {0});
  const int32_t root = tree.find_or_add_root("");
  const int32_t a = add(tree, root, 10, {1});
  const int32_t b = add(tree, root, 20, {2});
  tree.unlock(a, 0);
  tree.unlock(b, 0);
  tree.lock(a, 0);  // used again
  tree.unlock(a, 0);
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{2}));
}

TEST(RadixTree, a_node_may_lose_its_window_handle_and_keep_the_full_one) {
  RadixTree tree(kBlock, {0, 8});
  const int32_t root = tree.find_or_add_root("");
  const int32_t a = add(tree, root, 10, {1, 11});
  const int32_t b = add(tree, a, 20, {2, 12});
  for (const int32_t node : {b, a}) {
    tree.unlock(node, 1);
    tree.unlock(node, 0);
  }
  EXPECT_EQ(evicted_blocks(tree, 1), (std::vector<int32_t>{12}));
  EXPECT_EQ(tree.handle(b, 0), 2);
  EXPECT_EQ(tree.handle(b, 1), RadixTree::kNone);
  EXPECT_EQ(tree.check_invariants(), "");
  tree.set_handle(b, 1, 13);  // somebody computed it again
  tree.unlock(b, 1);
  EXPECT_EQ(evicted_blocks(tree, 0),
            (std::vector<int32_t>{2, 13}));  // without the full handle nothing is left
  EXPECT_EQ(find(tree, a, 20), RadixTree::kNone);
}

TEST(RadixTree, with_windows_only_an_empty_branch_disappears) {
  RadixTree tree(kBlock, {8});
  const int32_t root = tree.find_or_add_root("");
  const int32_t a = add(tree, root, 10, {1});
  const int32_t b = add(tree, a, 20, {2});
  tree.pin(b);
  tree.unlock(a, 0);
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{1}));
  EXPECT_EQ(find(tree, root, 10), a);  // its child is there yet
  tree.unlock(b, 0);
  EXPECT_EQ(evicted_blocks(tree, 0), (std::vector<int32_t>{2}));
  EXPECT_EQ(tree.num_nodes(), 3);  // pinned
  tree.unpin(b);
  EXPECT_EQ(tree.num_nodes(), 0);
}

}  // namespace
}  // namespace tailrace
