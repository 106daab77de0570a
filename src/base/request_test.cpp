#include "base/request.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>

#include "base/engine_status.h"

namespace tailrace {
namespace {

TokenEvent token(TokenId id) {
  TokenEvent event;
  event.id = id;
  return event;
}

TokenEvent finish() {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinish;
  return event;
}

TEST(TokenStream, calls_back_only_when_it_turns_non_empty) {
  TokenStream stream;
  int calls = 0;
  stream.set_ready_callback([&] { ++calls; });
  stream.push(token(1));
  stream.push(token(2));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stream.take().size(), 2u);
  stream.push(finish());
  EXPECT_EQ(calls, 2);
}

TEST(TokenStream, gives_no_more_than_is_asked_for_and_keeps_the_rest_in_order) {
  TokenStream stream;
  int calls = 0;
  stream.set_ready_callback([&] { ++calls; });
  for (TokenId id = 1; id <= 3; ++id) stream.push(token(id));
  const auto first = stream.take(2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].id, 2);
  stream.push(token(4));
  EXPECT_EQ(calls, 1);  // it has not been empty since
  const auto rest = stream.take(8);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].id, 3);
  EXPECT_EQ(rest[1].id, 4);
}

TEST(TokenStream, a_callback_set_late_hears_of_what_is_there) {
  TokenStream stream;
  stream.push(token(1));
  int calls = 0;
  stream.set_ready_callback([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(TokenStream, nothing_follows_a_finish) {
  TokenStream stream;
  stream.push(finish());
  EXPECT_DEATH(stream.push(token(1)), "check failed");
}

TEST(TokenStream, order_survives_between_two_threads) {
  constexpr TokenId kTokens = 5000;
  TokenStream stream;
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  stream.set_ready_callback([&] {
    std::lock_guard lock(mutex);
    ready = true;
    changed.notify_one();
  });
  std::thread engine([&] {
    for (TokenId id = 0; id < kTokens; ++id) stream.push(token(id));
    stream.push(finish());
  });
  TokenId expected = 0;
  for (bool finished = false; !finished;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return ready; });
      ready = false;
    }
    for (const TokenEvent& event : stream.take()) {
      finished = event.kind == TokenEvent::Kind::kFinish;
      if (!finished) {
        EXPECT_EQ(event.id, expected++);
      }
    }
  }
  engine.join();
  EXPECT_EQ(expected, kTokens);
}

TEST(LabelledCounters, threads_that_meet_at_a_new_name_share_its_slot) {
  LabelledCounters counters;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) counters.add(n % 2 ? "odd" : "even");
    });
  }
  for (auto& thread : threads) thread.join();
  int names = 0;
  counters.for_each([&](const char*, uint64_t count) {
    ++names;
    EXPECT_EQ(count, 2000u);
  });
  EXPECT_EQ(names, 2);
}

TEST(LabelledCounters, more_names_than_slots_are_counted_as_other) {
  static constexpr const char* kNames[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j",
                                           "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"};
  LabelledCounters counters;
  for (const char* name : kNames) counters.add(name);
  uint64_t total = 0, other = 0;
  counters.for_each([&](const char* name, uint64_t count) {
    total += count;
    if (std::string(name) == "other") other = count;
  });
  EXPECT_EQ(total, std::size(kNames));
  EXPECT_EQ(other, std::size(kNames) - (LabelledCounters::kSlots - 1));
}

}  // namespace
}  // namespace tailrace
