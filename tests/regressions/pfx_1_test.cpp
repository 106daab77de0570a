// PFX-1: a cached prefix is the same state as a cold run, at most prompt - 1 tokens long, and
// pinned when it is found.
#include <gtest/gtest.h>

#include <algorithm>

#include "simulation/random.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

constexpr int32_t kPage = 8, kChunk = 16;

TEST(Pfx1, prompts_around_page_and_chunk_lengths_three_times) {
  for (const int32_t len :
       {kPage - 1, kPage, kPage + 1, 2 * kPage, 2 * kPage + 1, kChunk, kChunk + 1}) {
    SimEngine engine(scenario_config(40));
    for (int round = 0; round < 3; ++round) {
      const auto request = make_request(family_tokens(len, len), 32);
      ASSERT_TRUE(engine.admit(request).ok());
      engine.run_until_idle(1);
      ASSERT_EQ(engine.violation(), "") << len;
      EXPECT_EQ(request->stream->cached_len, round == 0 ? 0 : (len - 1) / kPage * kPage) << len;
    }
  }
}

TEST(Pfx1, pairs_that_share_every_number_of_tokens) {
  for (int32_t shared = 0; shared <= 2 * kPage; ++shared) {
    SimEngine engine(scenario_config(40));
    std::vector<TokenId> other = family_tokens(1, shared);
    for (int32_t i = 0; i < 20; ++i) other.push_back(5);
    const auto first = make_request(family_tokens(1, 30), 12), second = make_request(other, 12);
    ASSERT_TRUE(engine.admit(first).ok());
    engine.run_until_idle(1);
    ASSERT_TRUE(engine.admit(second).ok());
    engine.run_until_idle(1);
    ASSERT_EQ(engine.violation(), "") << shared;
    EXPECT_EQ(second->stream->cached_len, shared / kPage * kPage);
  }
}

TEST(Pfx1, two_thousand_shuffled_requests_on_a_pool_of_1_2) {
  SchedulerConfig config = scenario_config(16);  // a request takes up to 13 pages
  config.max_rows = 8;
  SimEngine engine(config);
  Random random(3);
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 64; ++i) {
    std::vector<TokenId> prompt = family_tokens(i % 5, random.between(1, 40));
    const std::vector<TokenId> own = family_tokens(100 + i, random.between(1, 30));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(std::move(prompt));
  }
  for (int i = 0; i < 2000; ++i) {
    while (engine.scheduler().stats().waiting > 16) engine.turn(1);
    ASSERT_TRUE(
        engine.admit(make_request(prompts[random.between(0, 63)], random.between(1, 32))).ok());
    engine.turn(1);
  }
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
  EXPECT_GT(engine.scheduler().stats().cached_tokens, 1000u);
}

TEST(Pfx1, salts_do_not_share) {
  SimEngine engine(scenario_config(40));
  for (const char* salt : {"", "a", "b", "a"}) {
    auto request = make_request(family_tokens(1, 30), 4);
    request->cache_salt = salt;
    const bool seen = std::string(salt) == "a" && engine.answers().size() == 3;
    ASSERT_TRUE(engine.admit(request).ok());
    engine.run_until_idle(1);
    EXPECT_EQ(request->stream->cached_len, seen ? 24 : 0);
  }
  EXPECT_EQ(engine.violation(), "");
}

}  // namespace
}  // namespace tailrace
