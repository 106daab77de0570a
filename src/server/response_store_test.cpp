#include "server/response_store.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using Owner = ResponseStore::Owner;

const Json kNone = Json::array();

// One item of so many bytes.
Json item(size_t bytes) { return Json::array({{{"id", "i"}, {"text", std::string(bytes, 'x')}}}); }

// Begins and ends an answer of so many bytes.
bool put(ResponseStore& store, const std::string& id, size_t bytes = 100, const Owner& owner = nullptr) {
  auto pending = store.begin({}, kNone, owner);
  return pending && store.put(std::move(pending), id, "{}", item(bytes));
}

// Which of the answers "PREFIX0" ... "PREFIX9" there are.
std::string stored(ResponseStore& store, const std::string& prefix, const Owner& owner) {
  std::string out;
  for (int i = 0; i < 10; ++i) {
    if (store.find(prefix + std::to_string(i), owner)) out += std::to_string(i);
  }
  return out;
}

TEST(ResponseStore, keeps_the_least_recently_used_no_longer_than_there_is_room) {
  ResponseStore store(2, 1 << 20);
  EXPECT_TRUE(put(store, "a"));
  EXPECT_TRUE(put(store, "b"));
  EXPECT_TRUE(store.find("a", nullptr));
  EXPECT_TRUE(put(store, "c"));
  EXPECT_FALSE(store.find("b", nullptr));
  EXPECT_TRUE(store.find("a", nullptr) && store.find("c", nullptr));
  EXPECT_EQ(store.count(), 2);
}

TEST(ResponseStore, counts_bytes_and_takes_nothing_larger_than_itself) {
  ResponseStore store(100, 10000);
  EXPECT_TRUE(put(store, "a", 4000));
  EXPECT_TRUE(put(store, "b", 3500));
  EXPECT_LE(store.held_bytes(), 10000);
  EXPECT_FALSE(put(store, "c", 20000));
  EXPECT_FALSE(store.begin({}, item(20000), nullptr));
  EXPECT_TRUE(store.find("b", nullptr));
  EXPECT_TRUE(put(store, "d", 4000));
  EXPECT_FALSE(store.find("a", nullptr));
  EXPECT_LE(store.held_bytes(), 10000);
  EXPECT_TRUE(store.erase("b", nullptr) && store.erase("d", nullptr));
  EXPECT_EQ(store.held_bytes(), 0);
}

TEST(ResponseStore, turns_outlive_the_answers_they_were_stored_with) {
  ResponseStore store(100, 10000);
  EXPECT_TRUE(put(store, "a", 3000));
  const auto first = store.find("a", nullptr);
  EXPECT_TRUE(store.put(store.begin(first->turns, kNone, nullptr), "b", "{}", kNone));
  EXPECT_TRUE(store.erase("a", nullptr));
  EXPECT_GT(store.find("b", nullptr)->turns[1]->item(0).size(), 3000u);
  EXPECT_GT(store.held_bytes(), 3000);
}

TEST(ResponseStore, nobody_finds_what_another_key_stored) {
  ResponseStore store(100, 10000);
  const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
  EXPECT_TRUE(put(store, "a", 10, mine));
  EXPECT_FALSE(store.find("a", yours) || store.find("a", nullptr));
  EXPECT_FALSE(store.erase("a", yours));
  EXPECT_TRUE(store.find("a", mine));
  EXPECT_TRUE(store.erase("a", mine));
  EXPECT_FALSE(store.erase("a", mine));
}

TEST(ResponseStore, a_key_that_holds_more_than_its_share_gives_up_its_own) {
  const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
  for (const bool by_count : {false, true}) {
    ResponseStore store(by_count ? 8 : 100, by_count ? 1 << 20 : 8 * 2000);
    const size_t bytes = 1000;  // and what the entry takes
    const auto add = [&](const std::string& id, const Owner& owner) { return put(store, id, bytes, owner); };
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(add("m" + std::to_string(i), mine));
    const std::string alone = stored(store, "m", mine);
    ASSERT_GE(alone.size(), 8u) << "alone it has all of it";
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(add("y" + std::to_string(i), yours));
    EXPECT_EQ(stored(store, "y", yours), "0123") << "the other's share is there for the asking";
    const std::string left = stored(store, "m", mine);
    EXPECT_GE(left.size(), 4u);
    for (int i = 4; i < 10; ++i) EXPECT_TRUE(add("y" + std::to_string(i), yours));
    EXPECT_GE(stored(store, "y", yours).size(), 4u);
    EXPECT_LT(stored(store, "y", yours).size(), 10u);
    EXPECT_GE(stored(store, "m", mine).size(), 4u) << "and no more than that";
    EXPECT_EQ(stored(store, "m", mine).back(), '9') << "the latest used stay";
    EXPECT_LE(store.held_bytes(), by_count ? 1 << 20 : 8 * 2000);
  }
}

TEST(ResponseStore, what_is_on_its_way_counts_and_costs_others_nothing) {
  ResponseStore store(100, 10000);
  const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
  EXPECT_TRUE(put(store, "y", 1000, yours));
  auto running = store.begin({}, item(7000), mine);
  ASSERT_TRUE(running);
  EXPECT_GT(store.held_bytes(), 8000);
  EXPECT_FALSE(store.begin({}, item(5000), mine));
  EXPECT_FALSE(put(store, "m", 5000, mine));
  EXPECT_TRUE(store.find("y", yours));
  EXPECT_LE(store.held_bytes(), 10000);
  running.reset();
  EXPECT_TRUE(put(store, "m", 5000, mine));
  EXPECT_TRUE(store.find("y", yours));
}

// What one begins beyond its share goes before what another has stored within theirs.
TEST(ResponseStore, what_is_on_its_way_beyond_a_share_is_given_up_for_others) {
  ResponseStore store(100, 10000);
  const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
  EXPECT_TRUE(put(store, "y0", 1000, yours));
  auto first = store.begin({}, item(4000), mine), last = store.begin({}, item(3000), mine);
  ASSERT_TRUE(first && last);
  EXPECT_TRUE(put(store, "y1", 2000, yours));
  EXPECT_EQ(stored(store, "y", yours), "01");
  EXPECT_FALSE(store.put(std::move(last), "m1", "{}", kNone));
  EXPECT_TRUE(store.put(std::move(first), "m0", "{}", kNone));
  EXPECT_LE(store.held_bytes(), 10000);
}

TEST(ResponseStore, what_finds_no_room_costs_nothing) {
  for (const bool alone : {true, false}) {
    ResponseStore store(100, 10000);
    const auto mine = std::make_shared<int>(1), yours = std::make_shared<int>(2);
    if (!alone) EXPECT_TRUE(put(store, "y0", 4000, yours));
    EXPECT_TRUE(put(store, "m0", 1000, mine));
    const auto running = store.begin({}, item(2500), mine);
    ASSERT_TRUE(running);
    EXPECT_FALSE(put(store, "m1", alone ? 8000 : 5500, mine));
    EXPECT_FALSE(store.begin({}, item(alone ? 8000 : 5500), mine));
    EXPECT_EQ(stored(store, "m", mine), "0");
    EXPECT_EQ(stored(store, "y", yours), alone ? "" : "0");
    EXPECT_TRUE(put(store, "m2", alone ? 5500 : 1500, mine));
    EXPECT_EQ(stored(store, "m", mine), "2") << "what suffices goes";
  }
}

// An answer whose turns another one shares frees its own part alone.
TEST(ResponseStore, turns_that_others_hold_make_no_room) {
  ResponseStore store(100, 10000);
  const auto mine = std::make_shared<int>(1);
  EXPECT_TRUE(put(store, "a", 5000, mine));
  auto next = store.begin(store.find("a", mine)->turns, item(1000), mine);
  ASSERT_TRUE(next);
  EXPECT_FALSE(put(store, "b", 4000, mine));
  EXPECT_TRUE(store.find("a", mine)) << "dropping it would have freed nothing";
  EXPECT_TRUE(store.put(std::move(next), "c", "{}", kNone));
  EXPECT_TRUE(put(store, "b", 4000, mine));
  EXPECT_FALSE(store.find("a", mine) || store.find("c", mine));
}

TEST(ResponseStore, what_keys_that_are_gone_stored_makes_room) {
  ResponseStore store(4, 1 << 20);
  const auto gone = std::make_shared<int>(1), mine = std::make_shared<int>(2);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(put(store, "g" + std::to_string(i), 10, gone));
  auto pending = store.begin({}, kNone, gone);
  store.keep_only({mine});
  EXPECT_FALSE(store.put(std::move(pending), "g4", "{}", kNone));
  EXPECT_EQ(store.count(), 0);
  EXPECT_EQ(store.held_bytes(), 0);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(put(store, "m" + std::to_string(i), 10, mine));
  store.keep_only({mine});
  EXPECT_EQ(store.count(), 4);
}

TEST(ResponseStore, without_room_for_one_nothing_is_stored) {
  ResponseStore store(0, 10000);
  EXPECT_FALSE(store.enabled());
  EXPECT_FALSE(put(store, "a"));
}

}  // namespace
}  // namespace tailrace
