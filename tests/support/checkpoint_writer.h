// Writes Hugging Face checkpoint directories from C++, so that engine tests need no Python and no committed weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tailrace {

// One safetensors file: tensors are appended as BF16 (rounded to nearest even) or F32.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(bool bf16) : bf16_(bf16) {}
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values);
  void add_bytes(const std::string& name, const std::vector<int64_t>& shape, const std::string& bytes,
                 const char* type = "U8");
  // Writes model.safetensors and config.json into the directory `path`, which is made. Throws on a full disk.
  void write(const std::string& path, const nlohmann::json& config) const;

 private:
  bool bf16_;
  nlohmann::ordered_json header_ = nlohmann::ordered_json::object();
  std::string data_;
};

// A fresh directory under the system's temporary folder, removed when the object goes.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Configurations of tiny models (256 tokens, hidden 64), as config.json spells them; tests change keys as they need.
nlohmann::json tiny_llama_config();
nlohmann::json tiny_qwen3_config();
// 3 layers of linear attention, then a full one; 8 experts, 2 a token, and a shared one.
nlohmann::json tiny_qwen35_config();
// 4 layers, sliding windows of 32 keys but for the last layer: two KV groups.
nlohmann::json tiny_gemma3_config();

// 4 layers, every other one with a window of 24 keys; sinks; 8 experts, 2 a token, in bf16 or MXFP4.
nlohmann::json tiny_gpt_oss_config(bool mxfp4 = false);

// 4 layers, every other one full with heads of their own whose keys are the values; 8 experts, 2 a token, beside a
// dense MLP, in bf16 or NVFP4.
nlohmann::json tiny_gemma4_config(bool nvfp4 = false);

// Seeded random weights for every tensor that `config` asks for, scaled so that attention matters: scores spread by
// several units and the output of attention is as large as the embedding, so that a wrong key changes the answer. In 16
// bits or fp32, but for experts where quantization_config has them otherwise, and what quantized_layers lists as NVFP4.
void write_random_checkpoint(const std::string& path, const nlohmann::json& config, uint64_t seed, bool bf16 = true);

}  // namespace tailrace
