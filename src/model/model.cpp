#include "model/model.h"

#include <algorithm>

#include "base/limits.h"

namespace tailrace {
namespace {

// Groups by window, the full group first so that group 0 is the one that prefix matches are counted in.
Status assign_kv_groups(Model* model, const Backend& backend) {
  const ModelConfig& c = model->config;
  const auto recurrent = [&](size_t layer) { return !c.recurrent.empty() && c.recurrent[layer]; };
  std::vector<int32_t> windows;
  for (size_t layer = 0; layer < c.window.size(); ++layer) {
    const int32_t w = c.window[layer];
    if (!recurrent(layer) && std::find(windows.begin(), windows.end(), w) == windows.end()) windows.push_back(w);
  }
  std::stable_partition(windows.begin(), windows.end(), [](int32_t w) { return w == 0; });
  if (windows.size() > kMaxKvGroups) {
    return Status(StatusCode::kUnsupported, "the model has " + std::to_string(windows.size()) +
                                                " distinct attention windows; at most " +
                                                std::to_string(kMaxKvGroups) + " are supported");
  }
  for (int32_t w : windows) {
    const HeadShape heads = c.heads(w);
    model->groups.push_back({.window = w, .kv_heads = heads.kv_heads, .head_dim = heads.head_dim});
  }
  model->states = {.k_heads = c.linear.k_heads, .v_heads = c.linear.v_heads, .k_dim = c.linear.k_dim,
                   .v_dim = c.linear.v_dim, .conv_inputs = backend.stored_conv_inputs(c.linear.conv_width)};
  for (size_t layer = 0; layer < c.window.size(); ++layer) {
    const int32_t w = c.window[layer];
    if (recurrent(layer)) {
      model->kv_of_layer.push_back({-1, model->states.num_layers++});
      continue;
    }
    const auto group = static_cast<int>(std::find(windows.begin(), windows.end(), w) - windows.begin());
    model->kv_of_layer.push_back({group, model->groups[group].num_layers++});
  }
  return Status();
}

}  // namespace

Expected<Model> build_model(const ModelConfig& config, WeightLoader& loader) {
  Model model{.config = config};
  if (Status status = assign_kv_groups(&model, loader.backend()); !status.ok()) return fail(status);
  switch (config.architecture) {
    case Architecture::kGemma3: model.blocks = gemma3_forward(model, loader); break;
    case Architecture::kGemma4: model.blocks = gemma4_forward(model, loader); break;
    case Architecture::kQwen35:
    case Architecture::kQwen35Moe: model.blocks = qwen35_forward(model, loader); break;
    default: model.blocks = llama_forward(model, loader);
  }
  if (!loader.status().ok()) return fail(loader.status());
  return model;
}

}  // namespace tailrace
