#include "server/response_store.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

StoredResponse response(ResponseStore& store, const std::string& id, size_t bytes = 100,
                        std::shared_ptr<const void> owner = nullptr) {
  return {id, std::move(owner), "{}", {store.make_turn("[]"), store.make_turn(std::string(bytes, 'x'))}};
}

TEST(ResponseStore, keeps_the_least_recently_used_no_longer_than_there_is_room) {
  ResponseStore store(2, 1 << 20);
  EXPECT_TRUE(store.put(response(store, "a")));
  EXPECT_TRUE(store.put(response(store, "b")));
  EXPECT_TRUE(store.find("a", nullptr));
  EXPECT_TRUE(store.put(response(store, "c")));
  EXPECT_FALSE(store.find("b", nullptr));
  EXPECT_TRUE(store.find("a", nullptr) && store.find("c", nullptr));
}

TEST(ResponseStore, counts_bytes_and_takes_nothing_larger_than_itself) {
  ResponseStore store(100, 10000);
  EXPECT_TRUE(store.put(response(store, "a", 4000)));
  EXPECT_TRUE(store.put(response(store, "b", 4000)));
  EXPECT_LE(store.held_bytes(), 10000);
  EXPECT_FALSE(store.put(response(store, "c", 20000)));
  EXPECT_TRUE(store.find("b", nullptr));
  EXPECT_TRUE(store.put(response(store, "d", 4000)));
  EXPECT_FALSE(store.find("a", nullptr));
  EXPECT_LE(store.held_bytes(), 10000);
  EXPECT_TRUE(store.erase("b", nullptr) && store.erase("d", nullptr));
  EXPECT_EQ(store.held_bytes(), 0);
}

TEST(ResponseStore, turns_outlive_the_answers_they_were_stored_with) {
  ResponseStore store(100, 10000);
  EXPECT_TRUE(store.put(response(store, "a", 3000)));
  const auto first = store.find("a", nullptr);
  StoredResponse next{"b", nullptr, "{}", first->turns};
  next.turns.push_back(store.make_turn("[]"));
  EXPECT_TRUE(store.put(std::move(next)));
  EXPECT_TRUE(store.erase("a", nullptr));
  EXPECT_EQ(store.find("b", nullptr)->turns[1]->size(), 3000u);
  EXPECT_GT(store.held_bytes(), 3000);
}

TEST(ResponseStore, nobody_finds_what_another_key_stored) {
  ResponseStore store(100, 10000);
  const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
  EXPECT_TRUE(store.put(response(store, "a", 10, mine)));
  EXPECT_FALSE(store.find("a", yours) || store.find("a", nullptr));
  EXPECT_FALSE(store.erase("a", yours));
  EXPECT_TRUE(store.find("a", mine));
  EXPECT_TRUE(store.erase("a", mine));
  EXPECT_FALSE(store.erase("a", mine));
}

TEST(ResponseStore, without_room_for_one_nothing_is_stored) {
  ResponseStore store(0, 10000);
  EXPECT_FALSE(store.enabled());
  EXPECT_FALSE(store.put(response(store, "a")));
}

}  // namespace
}  // namespace tailrace
