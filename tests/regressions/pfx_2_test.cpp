// PFX-2: prefix cache with sliding-window layers, W = 32 on half the layers, page 16.
#include <gtest/gtest.h>

#include "simulation/random.h"
#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

constexpr int32_t kWindow = 32;

SchedulerConfig window_config(int32_t window_blocks) {
  SchedulerConfig config = scenario_config(200);
  config.kv.block_size = 16;
  config.kv.groups.push_back({kWindow, window_blocks + 1});
  config.context_length = 1024;
  config.chunk_size = 64;
  config.max_log_patch_tokens = 2048;
  return config;
}

std::vector<TokenId> with_tail(std::vector<TokenId> tokens, int32_t family, int32_t count) {
  const std::vector<TokenId> tail = family_tokens(family, count);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return tokens;
}

TEST(Pfx2, repeats_extensions_and_branches_read_their_own_prefix) {
  for (const int32_t len : {kWindow - 1, kWindow, kWindow + 1, 2 * kWindow, 5 * kWindow + 3}) {
    SimEngine engine(window_config(60));
    const auto cold = make_request(family_tokens(1, len), 3 * kWindow);
    ASSERT_TRUE(engine.admit(cold).ok());
    engine.run_until_idle(1);
    const auto again = copy_of(*cold);
    ASSERT_TRUE(engine.admit(again).ok());
    engine.run_until_idle(1);
    EXPECT_GE(again->stream->cached_len, (len - 1) / 16 * 16)
        << len;  // the prompt's end kept its window
    const std::vector<TokenId> turn = next_turn(*cold, engine.answer(*cold).tokens, {});
    for (const int32_t more : {1, kWindow}) {
      const auto longer = make_request(with_tail(turn, 9, more), 5);
      ASSERT_TRUE(engine.admit(longer).ok());
      engine.run_until_idle(1);
      EXPECT_GE(longer->stream->cached_len, static_cast<int32_t>(turn.size()) - 16) << len;
    }
    for (int32_t at = 8; at < len; at += 8) {
      ASSERT_TRUE(engine.admit(make_request(with_tail(family_tokens(1, at), 20 + at, 12), 5)).ok());
      engine.run_until_idle(1);
    }
    engine.check_idle_pools();
    ASSERT_EQ(engine.violation(), "") << len;
  }
}

TEST(Pfx2, eight_streams_on_a_window_pool_of_few_windows) {
  SchedulerConfig config = window_config(3 * kWindow / 16 + 4);
  config.max_rows = 8;
  SimEngine engine(config);
  Random random(5);
  for (int i = 0; i < 1500 && engine.violation().empty(); ++i) {
    while (engine.scheduler().stats().waiting > 8 && engine.violation().empty()) engine.turn(1);
    const int32_t shared = random.between(1, 100);
    const auto request = make_request(
        with_tail(family_tokens(random.between(0, 3), shared), 30 + i % 7, random.between(1, 40)),
        random.between(1, 3 * kWindow));
    ASSERT_TRUE(engine.admit(request).ok());
    engine.turn(1);
  }
  engine.run_until_idle(1);
  engine.check_idle_pools();
  EXPECT_EQ(engine.violation(), "");
}

}  // namespace
}  // namespace tailrace
