#include "engine/tune.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "device/cuda_plugin.h"
#include "engine/engine_host.h"
#include "engine/tuning_file.h"
#include "kernels/cuda_abi.h"
#include "model/model_config.h"

namespace tailrace {
namespace {

Expected<std::vector<TuneShape>> shapes_of(const std::string& model) {
  if (model.empty()) {
    return std::vector<TuneShape>{{"gpt-oss full", 64, 8, 64, 0, true},
                                  {"gpt-oss window 128", 64, 8, 64, 128, true},
                                  {"Llama 3 8B", 32, 8, 128, 0, false},
                                  {"Qwen3.6 full", 16, 2, 256, 0, false},
                                  {"Gemma 4 window 1024", 16, 8, 256, 1024, false},
                                  {"Gemma 4 full", 16, 2, 512, 0, false}};
  }
  auto checkpoint = Checkpoint::open_config(model);
  if (!checkpoint) return fail(checkpoint.error());
  auto config = load_model_config(**checkpoint);
  if (!config) return fail(config.error());
  std::vector<int32_t> windows = config->window;
  std::sort(windows.begin(), windows.end());
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  std::vector<TuneShape> shapes;
  for (const int32_t window : windows) {
    const HeadShape heads = config->heads(window);
    shapes.push_back({.name = model + (window > 0 ? ", window " + std::to_string(window) : std::string()),
                      .q_heads = config->q_heads,
                      .kv_heads = heads.kv_heads,
                      .head_dim = heads.head_dim,
                      .window = window});
  }
  return shapes;
}

// Whether the table can be written, asked before half a minute of measuring. Leaves no file behind that was not there.
Status check_writable(const std::string& path) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  if (!std::ofstream(path, std::ios::app)) {
    return {StatusCode::kInvalidArgument, "--out " + path + ": cannot be written"};
  }
  if (!existed) std::filesystem::remove(path, error);
  return {};
}

}  // namespace

Status run_tune(const TuneOptions& options) {
  auto shapes = shapes_of(options.model);
  if (!shapes) return shapes.error();
  auto plugin = load_cuda_plugin(cuda_plugin_abi());
  if (!plugin) return plugin.error();
  const auto gpu = decide_device("cuda", options.device_index);
  if (!gpu) return gpu.error();
  const std::string& name = gpu->reason;
  const std::string out = options.out.empty() ? tuning_file_name(name) : options.out;
  if (Status status = check_writable(out); !status.ok()) return status;
  auto device = (*plugin)->create_device({.index = options.device_index});
  if (!device) return device.error();
  std::printf("%s: us of each case, and a candidate's time over the default's\n",
              (*device)->description().c_str());
  const auto print = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  auto table = (*plugin)->tune(**device, *shapes, print);
  if (!table) return table.error();
  if (Status status = write_tuning_file(out, name, *table); !status.ok()) return status;
  std::printf("%s: %zu choices that differ from the defaults; read at start from configs/tuning/%s\n", out.c_str(),
              table->decode.size() + table->mixed.size(), tuning_file_name(name).c_str());
  return {};
}

}  // namespace tailrace
