// CTX-1, engine part: a prompt that does not fit is refused at once with the numbers, nothing is cut silently, and the streams
// that run do not notice.
#include <gtest/gtest.h>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

constexpr int kContext = 512;

class Ctx1 : public ::testing::Test {
 protected:
  void SetUp() override { write_random_checkpoint(dir_.path(), tiny_llama_config(), 61); }
  EngineSetup setup() const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.context_length = kContext;
    return setup;
  }
  TempDir dir_;
};

TEST_F(Ctx1, prompts_around_the_limit) {
  TestEngine engine(setup());
  const auto other = engine.submit(greedy_request(random_prompt(1, 10), 400));
  for (int length : {510, 511, 512, 513, 100000}) {
    for (int max_tokens : {1, 2, 600}) {
      SCOPED_TRACE("prompt " + std::to_string(length) + ", max_tokens " + std::to_string(max_tokens));
      const auto request = engine.submit(greedy_request(random_prompt(length, length), max_tokens));
      const Answer& answer = engine.wait(*request);
      if (length + max_tokens <= kContext) {
        EXPECT_EQ(answer.finish, FinishReason::kLength);
        EXPECT_EQ(answer.ids.size(), static_cast<size_t>(max_tokens));
      } else {
        EXPECT_EQ(answer.finish, FinishReason::kError);
        EXPECT_TRUE(answer.ids.empty());
        EXPECT_NE(answer.error.find(std::to_string(length)), std::string::npos) << answer.error;
        EXPECT_NE(answer.error.find(std::to_string(kContext)), std::string::npos) << answer.error;
      }
    }
  }
  EXPECT_EQ(engine.wait(*other).ids.size(), 400u);
}

TEST_F(Ctx1, a_context_is_used_to_its_last_token) {
  TestEngine engine(setup());
  const Answer& answer = engine.wait(*engine.submit(greedy_request(random_prompt(2, 12), kContext - 12)));
  EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kContext - 12));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST_F(Ctx1, a_pool_smaller_than_the_context_lowers_the_limit_at_start) {
  EngineSetup small = setup();
  small.limits.max_total_tokens = 128;
  TestEngine engine(small);
  EXPECT_EQ(engine.host().report().memory.context_length, 128);
  EXPECT_EQ(engine.wait(*engine.submit(greedy_request(random_prompt(3, 100), 29))).finish, FinishReason::kError);
  EXPECT_EQ(engine.wait(*engine.submit(greedy_request(random_prompt(3, 100), 28))).ids.size(), 28u);
}

}  // namespace
}  // namespace tailrace
