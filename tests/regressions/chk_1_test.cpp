// CHK-1: chunk sizes and mixing do not change answers, and no middle chunk is sampled from.
#include <gtest/gtest.h>

#include "simulation/requests.h"
#include "simulation/sim_engine.h"

namespace tailrace {
namespace {

TEST(Chk1, every_chunk_size_and_mode_gives_the_answers_of_a_lone_run) {
  for (const int32_t chunk : {1, 7, 16, 64, 4096}) {
    for (const MixedMode mode : {MixedMode::kSplit, MixedMode::kFold, MixedMode::kOff}) {
      for (const int32_t streams : {1, 5, 16}) {
        SchedulerConfig config = scenario_config(700);
        config.max_rows = 17;
        config.context_length = 4096;
        config.chunk_size = chunk;
        config.max_step_tokens = std::max(64, chunk);
        config.max_log_patch_tokens = 4096 + config.max_step_tokens;
        config.mixed = mode;
        SimEngine engine(config);
        for (int32_t i = 0; i < streams; ++i) {
          ASSERT_TRUE(engine.admit(make_request(family_tokens(i, 5 + 3 * i), 30)).ok());
        }
        for (int i = 0; i < 10; ++i) engine.turn(1);
        const int32_t long_len = chunk == 1 ? 300 : 3000;
        const auto late = make_request(family_tokens(99, long_len), 10);
        ASSERT_TRUE(engine.admit(late).ok());
        engine.run_until_idle(1);
        ASSERT_EQ(engine.violation(), "") << "chunk " << chunk << ", streams " << streams;
        EXPECT_EQ(engine.answer(*late).tokens, predict_answer(*late, 10));
        const SchedulerStats stats = engine.scheduler().stats();
        EXPECT_EQ(stats.generated_tokens, 30u * streams + 10);
        EXPECT_TRUE(mode != MixedMode::kOff || stats.mixed_steps == 0);
      }
    }
  }
}

}  // namespace
}  // namespace tailrace
