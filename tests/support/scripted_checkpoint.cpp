#include "support/scripted_checkpoint.h"

#include "base/check.h"
#include "support/checkpoint_writer.h"
#include "model/model_tensors.h"

namespace tailrace {

std::vector<TokenId> Scripts::script(int script) const {
  std::vector<TokenId> ids;
  for (int i = 1; i <= length; ++i) ids.push_back(trigger(script) + i);
  return ids;
}

void write_scripted_checkpoint(const std::string& path, const Scripts& scripts) {
  const int64_t vocab = scripts.vocab();
  const int64_t hidden = (vocab + 63) / 64 * 64;
  nlohmann::json config = tiny_qwen3_config();
  config.update({{"vocab_size", vocab}, {"hidden_size", hidden}, {"num_hidden_layers", 1}, {"eos_token_id", 0}});
  auto parsed = parse_hf_config(config, "scripted config");
  CHECK_MSG(parsed.has_value(), parsed.error().message().c_str());

  std::vector<TokenId> successor(vocab, Scripts::kEos);
  for (int s = 0; s < scripts.num_scripts; ++s) {
    for (int i = 0; i < scripts.length; ++i) successor[scripts.trigger(s) + i] = scripts.trigger(s) + i + 1;
  }
  CheckpointWriter writer(true);
  for (const ModelTensor& tensor : model_tensors(*parsed)) {
    const bool vector = tensor.shape.size() == 1;
    const int64_t count = vector ? tensor.shape[0] : tensor.shape[0] * tensor.shape[1];
    std::vector<float> values(count, vector ? 1.0f : 0.0f);
    for (int64_t id = 0; id < vocab; ++id) {
      if (tensor.name == "model.embed_tokens.weight") values[id * hidden + id] = 1;
      if (tensor.name == "lm_head.weight") values[successor[id] * hidden + id] = 1;
    }
    writer.add(tensor.name, tensor.shape, values);
  }
  writer.write(path, config);
}

}  // namespace tailrace
