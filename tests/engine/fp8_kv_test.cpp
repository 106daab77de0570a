// --kv-cache-dtype fp8: keys and values in e4m3, half the bytes, and what that does to the answers.
#include <gtest/gtest.h>

#include <cmath>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/golden.h"
#include "support/logit_error.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

EngineSetup setup_of(const std::string& path, const char* backend, Format format) {
  EngineSetup setup = test_setup(path, backend);
  setup.kv_format = format;
  setup.limits.chunk_size = 384;
  return setup;
}

LogitError error_of(const Golden& golden, const EngineSetup& setup) {
  LogitError error;
  StepDriver driver(setup);
  if (!driver.ok()) return error;
  for (const GoldenPrompt& prompt : golden.prompts) {
    for (size_t i = 0; i < prompt.positions.size(); ++i) {
      driver.restart(0);
      driver.extend(0, {prompt.ids.begin(), prompt.ids.begin() + prompt.positions[i] + 1});
      error.add(prompt.logits_at(i), driver.run()[0], spread(prompt.logits));
    }
  }
  return error;
}

// What it loses, beside transformers' logits: docs/KERNELS.md states these figures.
TEST(Fp8Kv, how_far_it_is_from_the_stored_values) {
  for (const char* name : {"llama", "qwen3", "gemma3", "gemma4", "gpt_oss_bf16", "qwen3_5"}) {
    const Golden golden = load_golden(name);
    for (const char* backend : {"reference", "cpu"}) {
      const LogitError error = error_of(golden, setup_of(golden.directory, backend, Format::kF8E4M3));
      ASSERT_GT(error.count, 0) << name;
      std::printf("    %s, %s: largest error %.3f, mean %.4f of the spread\n", name, backend, error.max, error.mean());
      EXPECT_LT(error.mean(), 0.15) << name;
      EXPECT_GT(error.mean(), 0.002) << name << ": nothing was rounded";
    }
  }
}

// Whole prompts by the extend kernel; the mean is the reference's and what bf16 between kernels adds.
TEST(Fp8Kv, how_far_cuda_is) {
  for (const char* name : {"llama", "qwen3", "gemma3", "gemma4", "gpt_oss_bf16", "qwen3_5"}) {
    const Golden golden = load_golden(name);
    EngineSetup setup = setup_of(golden.directory, "cpu", Format::kF8E4M3);
    if (const Status none = use_cuda(&setup); !none.ok()) GTEST_SKIP() << none.message();
    const LogitError error = error_of(golden, setup);
    ASSERT_GT(error.count, 0) << name;
    std::printf("    %s, cuda: largest error %.3f, mean %.4f of the spread\n", name, error.max, error.mean());
    EXPECT_LT(error.mean(), 0.15) << name;
  }
}

// One rounding rule: but for values that lie within the last bits of a tie, both backends keep the same codes.
TEST(Fp8Kv, backends_agree) {
  for (const auto& config :
       {tiny_llama_config(), tiny_gemma3_config(), tiny_gpt_oss_config(false), tiny_gemma4_config(false)}) {
    TempDir dir;
    write_random_checkpoint(dir.path(), config, 5);
    const std::vector<TokenId> prompt = random_prompt(3, 80);
    for (const int chunk : {1, 16, 80}) {
      StepDriver reference(setup_of(dir.path(), "reference", Format::kF8E4M3));
      StepDriver cpu(setup_of(dir.path(), "cpu", Format::kF8E4M3));
      ASSERT_TRUE(reference.ok() && cpu.ok());
      const auto expected = reference.logits_in_chunks(prompt, chunk), got = cpu.logits_in_chunks(prompt, chunk);
      LogitError error;
      for (size_t i = 0; i < got.size(); ++i) error.add(expected[i].data(), got[i], spread(expected[i]));
      EXPECT_LT(error.mean(), 0.002) << config.at("architectures") << " chunk " << chunk;
    }
  }
}

TEST(Fp8Kv, takes_half_of_the_bytes) {
  TempDir dir;
  write_random_checkpoint(dir.path(), tiny_gemma3_config(), 5);
  const auto kv_bytes = [&](Format format) {
    const auto report = inspect_model(setup_of(dir.path(), "cpu", format));
    size_t bytes = 0;
    for (const LedgerLine& line : report->memory.ledger) {
      if (!line.name.starts_with("KV ")) continue;
      bytes += line.bytes;
      EXPECT_TRUE(line.detail.ends_with(std::string("B per token, ") + format_traits(format).name)) << line.detail;
    }
    return bytes;
  };
  EXPECT_GT(kv_bytes(Format::kF8E4M3), 0u);
  EXPECT_EQ(2 * kv_bytes(Format::kF8E4M3), kv_bytes(Format::kBF16));
}

}  // namespace
}  // namespace tailrace
