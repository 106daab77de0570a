// Reads what transformers computed for a tiny checkpoint of tests/goldens (tools/make_goldens.py).
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"

namespace tailrace {

struct GoldenPrompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;  // whose logits are kept; the last is the prompt's last token
  std::vector<float> logits;       // [positions, vocab] fp32
  std::vector<int32_t> greedy;     // continuation, highest logit each
  std::vector<float> margins;      // [greedy]: logit of the chosen token less the runner-up's

  const float* logits_at(size_t i) const { return logits.data() + i * (logits.size() / positions.size()); }
};

struct Golden {
  std::string directory;  // a checkpoint that can be loaded
  int64_t vocab = 0;
  std::vector<GoldenPrompt> prompts;
};

inline constexpr const char* kGoldenModels[] = {"llama", "llama3", "qwen2", "qwen3", "mistral", "gemma3"};
// 8-bit floats with scales: logits are those of the products (tools/make_tiny_fp8.py).
inline constexpr const char* kGoldenFp8[] = {"fp8_channel", "fp8_block", "fp8_tensor"};
// Mixtures of experts in bf16 and in MXFP4 (tools/make_tiny_gpt_oss.py).
inline constexpr const char* kGoldenMoe[] = {"gpt_oss_bf16", "gpt_oss", "gguf_gpt_oss"};
// Gemma 4: mixtures and dense, in bf16, NVFP4 and 8-bit floats (tools/make_tiny_gemma4.py).
inline constexpr const char* kGoldenGemma4[] = {"gemma4",       "gemma4_nvfp4", "gemma4_nvfp4_all",
                                                "gemma4_fp8", "gemma4_dense", "gemma4_dense_nvfp4", "gemma4_unified"};
// Linear attention; as mixtures in bf16, FP8 by block, and FP8 with NVFP4, and dense (tools/make_tiny_qwen3_5.py).
inline constexpr const char* kGoldenRecurrent[] = {"qwen3_5_moe", "qwen3_5_moe_fp8", "qwen3_5_moe_nvfp4", "qwen3_5"};
// GGUF files with quantised weights: logits are those of the dequantised values (tools/make_tiny_gguf.py).
inline constexpr const char* kGoldenGgufs[] = {"gguf_llama", "gguf_qwen3", "gguf_gemma3"};

inline Golden load_golden(const std::string& model) {
  Golden golden;
  // Beside the program's folder in a bundle, else where it was compiled.
  const std::string here = "goldens/" + model, source = std::string(TAILRACE_SOURCE_DIR) + "/tests/goldens/" + model;
  golden.directory = std::ifstream(here + "/expected.json") ? here : source;
  std::ifstream text(golden.directory + "/expected.json"), binary(golden.directory + "/logits.bin", std::ios::binary);
  CHECK_MSG(text && binary, ("no golden for " + model).c_str());
  const nlohmann::json document = nlohmann::json::parse(text);
  const std::string bytes((std::istreambuf_iterator<char>(binary)), {});
  golden.vocab = document["vocab"];
  size_t at = 0;
  for (const nlohmann::json& entry : document["prompts"]) {
    GoldenPrompt prompt{entry["ids"], entry["positions"], {}, entry["greedy"], entry["margins"]};
    prompt.logits.resize(prompt.positions.size() * golden.vocab);
    CHECK(at + prompt.logits.size() * sizeof(float) <= bytes.size());
    std::memcpy(prompt.logits.data(), bytes.data() + at, prompt.logits.size() * sizeof(float));
    at += prompt.logits.size() * sizeof(float);
    golden.prompts.push_back(std::move(prompt));
  }
  CHECK(at == bytes.size());
  return golden;
}

}  // namespace tailrace
