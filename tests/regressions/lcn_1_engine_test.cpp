// LCN-1, window part: a window of W keys counts the query itself, in one prefill, in chunks and step by step. With one layer,
// the logits at p do not change when token p - W changes and do when token p - W + 1 changes.
#include <gtest/gtest.h>

#include "base/test_fault.h"
#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"
#include "support/step_driver.h"

namespace tailrace {
namespace {

constexpr int kWindow = 8;

EngineSetup one_layer_setup(const std::string& path, const std::string& backend, int kv_splits) {
  EngineSetup setup = test_setup(path, backend);
  setup.limits.max_rows = 1;
  setup.limits.chunk_size = 256;
  setup.limits.max_total_tokens = 1024;
  setup.backend_options.kv_splits = kv_splits;
  return setup;
}

// "" or the first position and path at which the window is not kWindow keys.
std::string wrong_window(StepDriver& driver) {
  for (int p : {7, 8, 9, 63, 64, 200}) {
    for (int chunk : {256, 5, 1}) {
      std::vector<TokenId> tokens = random_prompt(p, p + 1);
      const auto at_p = [&] { return driver.logits_in_chunks(tokens, chunk).back(); };
      const std::vector<float> logits = at_p();
      const std::string where = "position " + std::to_string(p) + ", chunks of " + std::to_string(chunk);
      if (p >= kWindow) {
        tokens[p - kWindow] = tokens[p - kWindow] % 250 + 5;
        if (at_p() != logits) return where + ": the key before the window is seen";
      }
      tokens[p - kWindow + 1] = tokens[p - kWindow + 1] % 250 + 5;
      if (at_p() == logits) return where + ": the window's first key is not seen";
    }
  }
  return "";
}

TEST(Lcn1, window_counts_the_query_on_every_path) {
  TempDir dir;
  nlohmann::json config = tiny_gemma3_config();
  config["num_hidden_layers"] = 1;
  config["sliding_window"] = kWindow;
  config["layer_types"] = {"sliding_attention"};
  write_random_checkpoint(dir.path(), config, 3);
  for (const char* backend : {"reference", "cpu"}) {
    for (int splits : {1, 3}) {
      SCOPED_TRACE(std::string(backend) + ", splits " + std::to_string(splits));
      StepDriver driver(one_layer_setup(dir.path(), backend, splits));
      ASSERT_TRUE(driver.ok());
      EXPECT_EQ(wrong_window(driver), "");
      if (std::string(backend) == "reference") continue;  // it has no guards to take out
      ScopedTestFault fault(Fault::kWindowOffByOne);
      EXPECT_NE(wrong_window(driver), "");
    }
  }
}

}  // namespace
}  // namespace tailrace
