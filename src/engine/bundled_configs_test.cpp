// The configurations in configs/: each is described, planned and accepted by the CPU backend as its published shape.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "engine/engine_host.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

struct Shape {
  double parameters;  // of text: no vision, no extra prediction layers
  double gb;          // of weights in the published formats; biases, norms and, for each row, blocks' scales in fp32
  int full_layers, other_layers;  // others: with a window or recurrent
};
const std::map<std::string, Shape> kShapes = {
    {"llama-3-8b", {8.03e9, 16.06, 32, 0}},        {"llama-3-8b-fp8", {8.03e9, 9.09, 32, 0}},
    {"gpt-oss-20b", {20.9e9, 13.76, 12, 12}},      {"gpt-oss-120b", {116.8e9, 65.25, 18, 18}},
    {"gemma-4-26b-a4b", {25.2e9, 17.6, 5, 25}},    {"gemma-4-26b-a4b-fp8", {25.2e9, 26.0, 5, 25}},
    {"gemma-4-12b", {11.9e9, 23.8, 8, 40}},        {"gemma-4-31b", {30.7e9, 61.4, 10, 50}},
    {"qwen3.6-35b-a3b", {34.7e9, 20.8, 10, 30}},   {"qwen3.6-35b-a3b-fp8", {34.7e9, 36.7, 10, 30}},
    {"qwen3.6-27b", {26.9e9, 53.8, 16, 48}},       {"qwen3.6-27b-fp8", {26.9e9, 30.2, 16, 48}},
};

double parameters_of(const ModelConfig& config) {
  double count = 0;
  for (const ModelTensor& tensor : model_tensors(config)) {
    double values = 1;
    for (const int64_t dim : tensor.shape) values *= static_cast<double>(dim);
    count += values;
  }
  return count + 3.0 * config.experts * static_cast<double>(config.expert_intermediate * config.hidden) * config.layers;
}

TEST(BundledConfigs, each_is_planned_as_its_published_shape) {
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TAILRACE_SOURCE_DIR "/configs")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    ++folders;
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    ASSERT_TRUE(kShapes.contains(name)) << "a shape that this test does not know";
    const Shape& shape = kShapes.at(name);
    EngineSetup setup;
    setup.model_path = entry.path().string();
    setup.dummy_weights = true;
    setup.threads = 1;
    setup.limits.max_rows = 4;
    setup.limits.context_length = 8192;
    setup.device.memory_bytes = size_t{1} << 40;
    const auto report = inspect_model(setup);
    ASSERT_TRUE(report.has_value()) << report.error().message();
    double bytes = 0;
    for (const auto& [format, packed] : report->bytes_by_format) bytes += static_cast<double>(packed);
    EXPECT_NEAR(parameters_of(report->config) / shape.parameters, 1, 0.01);
    EXPECT_NEAR(bytes / (shape.gb * 1e9), 1, 0.02);
    const auto& window = report->config.window;
    const auto& recurrent = report->config.recurrent;
    int full = 0;
    for (size_t i = 0; i < window.size(); ++i) full += window[i] == 0 && (recurrent.empty() || !recurrent[i]);
    EXPECT_EQ(full, shape.full_layers);
    EXPECT_EQ(report->config.layers, shape.full_layers + shape.other_layers);
  }
  EXPECT_EQ(folders, kShapes.size()) << "a shape is missing";
}

}  // namespace
}  // namespace tailrace
