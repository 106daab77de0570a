// Where a shared expert lies: behind the experts that it is stored like, on a backend that takes it so, else beside them.
#include <gtest/gtest.h>

#include <cmath>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

nlohmann::json config_of(int shared_width, bool nvfp4) {
  nlohmann::json config = tiny_qwen35_config();
  config["shared_expert_intermediate_size"] = shared_width;
  if (nvfp4) config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  return config;
}

// How many mixtures have it behind the experts, of 4; -1: some token's logits are no numbers.
int num_last(const nlohmann::json& config, const char* backend, bool dummy, bool requantize = false) {
  TempDir dir;
  dummy ? CheckpointWriter(true).write(dir.path(), config) : write_random_checkpoint(dir.path(), config, 5);
  EngineSetup setup = test_setup(dir.path(), backend);
  setup.dummy_weights = dummy, setup.requantize_dense = requantize;
  StepDriver driver(setup);
  if (!driver.ok()) return -1;
  driver.restart(0);
  driver.extend(0, random_prompt(1, 9));
  const auto logits = driver.run();
  for (const float logit : logits[0]) {
    if (!std::isfinite(logit)) return -1;
  }
  int last = 0;
  for (const LayerBlock& block : driver.model().blocks) {
    const auto* moe = std::get_if<MoeBlock>(&block);
    if (moe == nullptr) continue;
    EXPECT_NE(moe->shared_last(), moe->dense.present());
    EXPECT_EQ(moe->gate.count, moe->shared_last() ? 9 : 8);
    last += moe->shared_last();
  }
  return last;
}

TEST(SharedExpert, lies_behind_experts_of_its_shape) {
  EXPECT_EQ(num_last(config_of(32, false), "reference", false), 4);
  EXPECT_EQ(num_last(config_of(64, false), "reference", false), 0);
  EXPECT_EQ(num_last(config_of(32, false), "cpu", false), 0) << "the CPU's kernels take it beside the experts";
}

TEST(SharedExpert, of_dummy_weights_too) {
  for (const bool nvfp4 : {false, true}) {
    EXPECT_EQ(num_last(config_of(32, nvfp4), "reference", true), 4);
    EXPECT_EQ(num_last(config_of(64, nvfp4), "reference", true), 0);
  }
}

// The experts keep their 16 bits then, and it does not.
TEST(SharedExpert, lies_beside_them_where_it_alone_is_requantised) {
  EXPECT_EQ(num_last(config_of(32, false), "reference", false, true), 0);
  EXPECT_EQ(num_last(config_of(32, false), "reference", true, true), 0);
}

}  // namespace
}  // namespace tailrace
