// CHK-2: a long prompt does not freeze the streams that run, nor do they starve it. Counted in steps, not in time: each step
// of the prefill carries the running rows.
#include <gtest/gtest.h>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

class Chk2 : public ::testing::Test {
 protected:
  void SetUp() override { write_random_checkpoint(dir_.path(), tiny_llama_config(), 41); }
  EngineSetup setup(MixedMode mixed = MixedMode::kSplit) const {
    EngineSetup setup = test_setup(dir_.path());
    setup.limits.context_length = 4096;
    setup.limits.max_total_tokens = 48 * 1024;
    setup.limits.chunk_size = 128;
    setup.limits.prefix_cache = false;
    setup.mixed = mixed;
    return setup;
  }
  TempDir dir_;
};

TEST_F(Chk2, every_step_of_a_long_prefill_carries_the_running_row) {
  TestEngine engine(setup());
  const EngineStatus& status = engine.status();
  const auto victim = engine.submit(greedy_request(random_prompt(1, 10), 1500, -1));
  engine.wait(*victim, 1);
  const auto flood = engine.submit(greedy_request(random_prompt(2, 2000), 3, -1));
  engine.wait(*flood);
  engine.wait(*victim);
  engine.wait_idle();
  EXPECT_GE(status.mixed_steps, 2000u / 128);
  EXPECT_EQ(status.extend_steps, 1u);  // the victim's own prompt: it had a token in every step since
  EXPECT_LE(status.mixed_steps + status.decode_steps, 1500u);
}

TEST_F(Chk2, without_mixed_steps_chunks_and_decode_steps_alternate) {
  TestEngine engine(setup(MixedMode::kOff));
  const EngineStatus& status = engine.status();
  const auto victim = engine.submit(greedy_request(random_prompt(1, 10), 1500, -1));
  engine.wait(*victim, 1);
  const uint64_t decode_before = status.decode_steps;
  const auto flood = engine.submit(greedy_request(random_prompt(2, 2000), 1, -1));
  engine.wait(*flood);
  const uint64_t chunks = status.extend_steps - 1, decodes = status.decode_steps - decode_before;
  EXPECT_GE(chunks, 2000u / 128);
  EXPECT_GE(decodes + 2, chunks);
  engine.wait(*victim);
  EXPECT_EQ(status.mixed_steps, 0u);
}

TEST_F(Chk2, twenty_long_prompts_in_a_row_do_not_hold_up_a_stream) {
  TestEngine engine(setup());
  const auto victim = engine.submit(greedy_request(random_prompt(1, 10), 80, -1));
  engine.wait(*victim, 1);
  std::vector<std::shared_ptr<const Request>> floods;
  for (int i = 0; i < 20; ++i) floods.push_back(engine.submit(greedy_request(random_prompt(10 + i, 1000), 3, -1)));
  EXPECT_EQ(engine.wait(*victim).ids.size(), 80u);
  for (const auto& flood : floods) EXPECT_EQ(engine.wait(*flood).ids.size(), 3u);
  // 20 prompts need over 150 steps, the victim's end 80: prefill has not been put before it.
  EXPECT_LT(victim->stream->times.finished_ns, floods.back()->stream->times.first_token_ns);
}

TEST_F(Chk2, sixteen_streams_do_not_starve_a_long_prompt) {
  EngineSetup setup = this->setup();
  setup.limits.max_rows = 17;
  TestEngine engine(setup);
  std::vector<std::shared_ptr<const Request>> streams;
  for (int i = 0; i < 16; ++i) streams.push_back(engine.submit(greedy_request(random_prompt(i, 10), 800, -1)));
  for (const auto& stream : streams) engine.wait(*stream, 1);
  const auto late = engine.submit(greedy_request(random_prompt(99, 1000), 3, -1));
  engine.wait(*late);
  for (const auto& stream : streams) {
    engine.wait(*stream);
    EXPECT_LT(late->stream->times.first_token_ns, stream->stream->times.finished_ns);
  }
}

}  // namespace
}  // namespace tailrace
