#include "base/request_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace tailrace {
namespace {

using namespace std::chrono_literals;

std::vector<std::shared_ptr<const Request>> requests(int count) {
  std::vector<std::shared_ptr<const Request>> out;
  for (int i = 0; i < count; ++i) {
    auto request = std::make_shared<Request>();
    request->id = next_request_id();
    out.push_back(request);
  }
  return out;
}

TEST(RequestQueue, accepts_all_or_none) {
  RequestQueue queue(3);
  EXPECT_TRUE(queue.push(requests(2)).ok());
  EXPECT_EQ(queue.push(requests(2)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.depth(), 2u);
  EXPECT_TRUE(queue.push(requests(1)).ok());
  EXPECT_EQ(queue.take(0us).size(), 3u);
}

TEST(RequestQueue, what_waits_in_the_engine_counts_until_it_runs) {
  RequestQueue queue(2);
  EXPECT_TRUE(queue.push(requests(2)).ok());
  EXPECT_EQ(queue.take(0us).size(), 2u);
  EXPECT_EQ(queue.push(requests(1)).code(), StatusCode::kResourceExhausted);
  queue.set_waiting_in_engine(1);
  EXPECT_TRUE(queue.push(requests(1)).ok());
}

TEST(RequestQueue, closed_refuses_but_still_hands_out) {
  RequestQueue queue(4);
  EXPECT_TRUE(queue.push(requests(1)).ok());
  queue.close();
  EXPECT_EQ(queue.push(requests(1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(queue.take(1h).size(), 1u);
  EXPECT_TRUE(queue.take(1h).empty());  // closed: returns at once
}

TEST(RequestQueue, a_wake_before_the_wait_is_not_lost) {
  RequestQueue queue(1);
  queue.wake();
  EXPECT_TRUE(queue.take(1h).empty());
}

TEST(RequestQueue, every_request_of_many_pushers_is_taken_once) {
  constexpr int kPushers = 4, kEach = 500;
  RequestQueue queue(kPushers * kEach);
  std::vector<std::thread> pushers;
  for (int i = 0; i < kPushers; ++i) {
    pushers.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) ASSERT_TRUE(queue.push(requests(1)).ok());
    });
  }
  std::set<uint64_t> seen;
  while (seen.size() < kPushers * kEach) {
    for (const auto& request : queue.take(1h)) EXPECT_TRUE(seen.insert(request->id).second);
  }
  for (auto& pusher : pushers) pusher.join();
  EXPECT_TRUE(queue.take(0us).empty());
}

}  // namespace
}  // namespace tailrace
