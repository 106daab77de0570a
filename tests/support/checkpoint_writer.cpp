#include "support/checkpoint_writer.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/check.h"
#include "model/model_tensors.h"
#include "weights/mxfp4.h"

namespace tailrace {
namespace {

uint16_t round_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Mean and spread of a tensor's values, by its role.
struct Spread {
  double mean = 0, deviation = 1;
};
Spread spread_of(const ModelTensor& tensor, bool norm_plus_one) {
  const std::string& name = tensor.name;
  if (ends_with(name, "linear_attn.norm.weight")) return {1, 0.1};  // the one norm that is no (1 + w)
  if (ends_with(name, ".A_log")) return {-3, 1};                     // heads remember some ten or hundred tokens
  if (ends_with(name, ".dt_bias")) return {0, 1};
  if (ends_with(name, ".conv1d.weight")) return {0, 0.6};
  if (tensor.shape.size() == 1) {
    const bool bias = ends_with(name, ".bias");
    return bias ? Spread{0, 0.3} : Spread{norm_plus_one ? 0.0 : 1.0, 0.1};
  }
  const double unit = 1.0 / std::sqrt(static_cast<double>(tensor.shape[1]));
  if (name.find("embed_tokens") != std::string::npos) return {0, 1.0};
  if (name.find("lm_head") != std::string::npos) return {0, 4 * unit};
  if (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos) return {0, 1.5 * unit};
  if (name.find("o_proj") != std::string::npos) return {0, 1.5 * unit};
  return {0, unit};
}

nlohmann::json tiny_config() {
  return {{"hidden_size", 64},        {"num_hidden_layers", 3},     {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 32},             {"intermediate_size", 96},
          {"vocab_size", 256},        {"rms_norm_eps", 1e-6},       {"max_position_embeddings", 4096},
          {"rope_theta", 10000.0},    {"tie_word_embeddings", false}, {"torch_dtype", "bfloat16"},
          {"eos_token_id", 1},        {"bos_token_id", nullptr}};
}

// All codes alike, scales within a factor of two of what gives `deviation`.
void add_random_mxfp4(const std::string& name, const std::vector<int64_t>& shape, double deviation,
                      std::mt19937_64& random, CheckpointWriter* writer) {
  const int64_t blocks = shape[0] * shape[1] * shape[2] / 32;
  std::string codes, scales;
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t bits[2] = {random(), random()};
    codes.append(reinterpret_cast<const char*>(bits), sizeof bits);
    scales += static_cast<char>(mxfp4_scale_of(static_cast<float>(deviation)) + random() % 2);
  }
  writer->add_bytes(name + "_blocks", {shape[0], shape[1], shape[2] / 32, 16}, codes);
  writer->add_bytes(name + "_scales", {shape[0], shape[1], shape[2] / 32}, scales);
}

// A matrix as ModelOpt spells NVFP4: all codes alike, scales of blocks from 8 to 15.
void add_random_nvfp4(const std::string& name, int64_t rows, int64_t cols, double deviation, std::mt19937_64& random,
                      CheckpointWriter* writer) {
  std::string codes, blocks;
  for (int64_t i = 0; i < rows * cols / 16; ++i) {
    const uint64_t bits = random();
    codes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    blocks += static_cast<char>(0x50 + random() % 8);
  }
  const auto scale = static_cast<float>(deviation / (kE2M1Deviation * 11.5));
  writer->add_bytes(name, {rows, cols / 2}, codes);
  writer->add_bytes(name + "_scale", {rows, cols / 16}, blocks, "F8_E4M3");
  writer->add_bytes(name + "_scale_2", {}, std::string(reinterpret_cast<const char*>(&scale), sizeof scale), "F32");
}

// Matrices [experts, rows, cols], rows of gate and up in turn; in 16 bits x is on their left, or gate's rows come first.
void add_random_experts(const ModelConfig& config, std::mt19937_64& random, CheckpointWriter* writer) {
  std::normal_distribution<double> normal;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, double deviation) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(deviation * normal(random));
    writer->add(name, shape, values);
  };
  const int64_t experts = config.experts, hidden = config.hidden, rows = config.expert_intermediate;
  for (int32_t layer = 0; experts > 0 && layer < config.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + "." + config.experts_name + ".";
    const double gate_up = 1.5 / std::sqrt(hidden), down = 1 / std::sqrt(rows);
    if (config.quantization.by_tensor) {
      for (int64_t e = 0; e < experts; ++e) {
        const std::string own = prefix + std::to_string(e);
        add_random_nvfp4(own + ".gate_proj.weight", rows, hidden, gate_up, random, writer);
        add_random_nvfp4(own + ".up_proj.weight", rows, hidden, gate_up, random, writer);
        add_random_nvfp4(own + ".down_proj.weight", hidden, rows, down, random, writer);
      }
    } else if (config.expert_halves) {
      add(prefix + "gate_up_proj", {experts, 2 * rows, hidden}, gate_up);
      add(prefix + "down_proj", {experts, hidden, rows}, down);
    } else if (config.quantization.mxfp4) {
      add_random_mxfp4(prefix + "gate_up_proj", {experts, 2 * rows, hidden}, gate_up, random, writer);
      add_random_mxfp4(prefix + "down_proj", {experts, hidden, rows}, down, random, writer);
    } else {
      add(prefix + "gate_up_proj", {experts, hidden, 2 * rows}, gate_up);
      add(prefix + "down_proj", {experts, rows, hidden}, down);
    }
    if (!config.expert_bias) continue;
    add(prefix + "gate_up_proj_bias", {experts, 2 * rows}, 0.3);
    add(prefix + "down_proj_bias", {experts, hidden}, 0.3);
  }
}

}  // namespace

void CheckpointWriter::add(const std::string& name, const std::vector<int64_t>& shape,
                           const std::vector<float>& values) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  CHECK(count == static_cast<int64_t>(values.size()));
  const size_t begin = data_.size();
  for (float value : values) {
    if (bf16_) {
      const uint16_t half = round_to_bf16(value);
      data_.append(reinterpret_cast<const char*>(&half), sizeof half);
    } else {
      data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  header_[name] = {{"dtype", bf16_ ? "BF16" : "F32"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
}

void CheckpointWriter::add_bytes(const std::string& name, const std::vector<int64_t>& shape, const std::string& bytes,
                                 const char* type) {
  header_[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
  data_ += bytes;
}

void CheckpointWriter::write(const std::string& path, const nlohmann::json& config) const {
  std::filesystem::create_directories(path);
  std::string header = header_.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();
  std::ofstream weights(path + "/model.safetensors", std::ios::binary);
  weights.exceptions(std::ios::failbit | std::ios::badbit);
  weights.write(reinterpret_cast<const char*>(&length), sizeof length);
  weights << header << data_;
  std::ofstream config_file(path + "/config.json");
  config_file.exceptions(std::ios::failbit | std::ios::badbit);
  config_file << config.dump(1);
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tailrace-test-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempDir::~TempDir() { std::filesystem::remove_all(path_); }

nlohmann::json tiny_llama_config() {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"hidden_act", "silu"}});
  return config;
}

nlohmann::json tiny_gpt_oss_config(bool mxfp4) {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"GptOssForCausalLM"}}, {"model_type", "gpt_oss"}, {"num_hidden_layers", 4},
                 {"sliding_window", 24}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"swiglu_limit", 1.5},
                 {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}, {"truncate", false},
                                   {"original_max_position_embeddings", 512}}}});
  if (mxfp4) config["quantization_config"] = {{"quant_method", "mxfp4"}};
  return config;
}

nlohmann::json tiny_gemma4_config(bool nvfp4) {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"Gemma4ForCausalLM"}}, {"model_type", "gemma4_text"}, {"num_hidden_layers", 4},
                 {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
                 {"sliding_window", 24}, {"head_dim", 16}, {"global_head_dim", 32}, {"num_global_key_value_heads", 1},
                 {"attention_k_eq_v", true}, {"hidden_size_per_layer_input", 0}, {"enable_moe_block", true},
                 {"num_experts", 8}, {"top_k_experts", 2}, {"moe_intermediate_size", 32},
                 {"final_logit_softcapping", 30.0}});
  config.erase("rope_theta");
  if (nvfp4) config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  return config;
}

nlohmann::json tiny_qwen35_config() {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"Qwen3_5MoeForCausalLM"}}, {"model_type", "qwen3_5_moe_text"},
                 {"num_hidden_layers", 4}, {"partial_rotary_factor", 0.25}, {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4}, {"linear_key_head_dim", 16}, {"linear_value_head_dim", 16},
                 {"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32},
                 {"shared_expert_intermediate_size", 32}});
  return config;
}

nlohmann::json tiny_qwen3_config() {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}, {"hidden_act", "silu"}});
  return config;
}

nlohmann::json tiny_gemma3_config() {
  nlohmann::json config = tiny_config();
  config.update({{"architectures", {"Gemma3ForCausalLM"}},
                 {"model_type", "gemma3_text"},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"num_hidden_layers", 4},
                 {"query_pre_attn_scalar", 32},
                 {"sliding_window", 32},
                 {"rope_local_base_freq", 10000.0},
                 {"rope_theta", 1000000.0},
                 {"layer_types", {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"}}});
  return config;
}

void write_random_checkpoint(const std::string& path, const nlohmann::json& config, uint64_t seed, bool bf16) {
  auto parsed = parse_hf_config(config, "tiny config");
  CHECK_MSG(parsed.has_value(), parsed.error().message().c_str());
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  CheckpointWriter writer(bf16);
  for (const ModelTensor& tensor : model_tensors(*parsed)) {
    const Spread spread = spread_of(tensor, parsed->norm_plus_one);
    const Quantization& quantization = parsed->quantization;
    if (!quantization.modules.empty() && planned_format(quantization, tensor.name) == Format::kNVFP4) {
      add_random_nvfp4(tensor.name, tensor.shape[0], tensor.shape[1], spread.deviation, random, &writer);
      continue;
    }
    int64_t count = 1;
    for (int64_t extent : tensor.shape) count *= extent;
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(spread.mean + spread.deviation * normal(random));
    writer.add(tensor.name, tensor.shape, values);
  }
  add_random_experts(*parsed, random, &writer);
  writer.write(path, config);
}

}  // namespace tailrace
