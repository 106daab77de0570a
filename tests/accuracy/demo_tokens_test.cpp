// Token ids of the demo model's tokenizer against llama.cpp's, on a page of mixed text and on each of its pieces.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accuracy/demo_model.h"
#include "text/text_model.h"

namespace tailrace {
namespace {

TEST(DemoTokens, ids_equal_llama_cpps) {
  SKIP_WITHOUT_DEMO_MODEL();
  auto model = TextModel::load(demo_model_path());
  ASSERT_TRUE(model.has_value()) << model.error().message();
  std::ifstream file(demo_golden_path("tokens.json"));
  ASSERT_TRUE(file.good());
  const nlohmann::json cases = nlohmann::json::parse(file)["cases"];
  ASSERT_GE(cases.size(), 50u);
  size_t total = 0;
  for (const nlohmann::json& entry : cases) {
    const std::string text = entry["text"];
    const std::vector<TokenId> expected = entry["ids"];
    const auto ids = (*model)->tokenizer->encode(text, false, false);
    ASSERT_TRUE(ids.has_value()) << ids.error().message();
    EXPECT_EQ(*ids, expected) << text;
    EXPECT_EQ((*model)->tokenizer->decode(*ids, false), text);
    total += ids->size();
  }
  std::printf("    %zu texts, %zu ids\n", cases.size(), total);
}

}  // namespace
}  // namespace tailrace
