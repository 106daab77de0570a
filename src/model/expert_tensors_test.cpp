// The spellings of experts' matrices, and what a broken checkpoint is told.
#include "model/expert_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/model_tensors.h"
#include "weights/dequantize.h"
#include "weights/tensor_names.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
constexpr int kExperts = 3, kRows = 2, kHidden = 32, kWidth = 2;
const std::string kPrefix = "model.layers.0.mlp.experts.";

ModelConfig tiny_config(bool mxfp4) {
  ModelConfig config;
  config.experts = kExperts;
  config.experts_per_token = 1;
  config.hidden = kHidden;
  config.intermediate = config.expert_intermediate = kWidth;
  config.expert_bias = true;
  config.experts_name = "mlp.experts";
  config.layers = 1;
  config.quantization.mxfp4 = mxfp4;
  return config;
}

class ExpertTensors : public ::testing::Test {
 protected:
  ExpertTensors() {
    std::string pattern = (fs::temp_directory_path() / "tailrace-experts-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~ExpertTensors() override { fs::remove_all(folder_); }

  void add(const std::string& name, const char* type, const std::vector<int64_t>& shape, const std::string& data) {
    const size_t begin = data_.size();
    data_ += data;
    header_[kPrefix + name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  void add_bf16(const std::string& name, const std::vector<int64_t>& shape) {  // 0, 1, 2, ... as bf16
    std::string data;
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i);
      data.append(reinterpret_cast<const char*>(&value) + 2, 2);
    }
    add(name, "BF16", shape, data);
  }
  // Gate and up in MXFP4: byte i of the blocks is i, scale i of the scales is 100 + i.
  void add_mxfp4(int64_t scale_rows = 2 * kRows) {
    std::string blocks, scales;
    for (int i = 0; i < kExperts * 2 * kRows * 16; ++i) blocks += static_cast<char>(i);
    for (int i = 0; i < kExperts * scale_rows; ++i) scales += static_cast<char>(100 + i);
    add("gate_up_proj_blocks", "U8", {kExperts, 2 * kRows, 1, 16}, blocks);
    add("gate_up_proj_scales", "U8", {kExperts, scale_rows, 1}, scales);
    add_bf16("gate_up_proj_bias", {kExperts, 2 * kRows});
  }
  // Gate of every expert in NVFP4: value 0 of row r of expert e is 6 * (1 + r) * 2^e (in compressed-tensors' spelling
  // the scale divides), all others are 0.
  void add_nvfp4(bool compressed) {
    for (int e = 0; e < kExperts; ++e) {
      const std::string module = std::to_string(e) + ".gate_proj.weight";
      std::string values(kRows * kHidden / 2, '\0'), blocks(kRows * kHidden / 16, '\0');
      for (int row = 0; row < kRows; ++row) {
        values[row * kHidden / 2] = '\x07';
        blocks[row * kHidden / 16] = static_cast<char>(float_to_e4m3(static_cast<float>(1 + row)));
      }
      const auto scale = static_cast<float>(compressed ? std::ldexp(1.0, -e) : std::ldexp(1.0, e));
      add(module + (compressed ? "_packed" : ""), "U8", {kRows, kHidden / 2}, values);
      add(module + "_scale", "F8_E4M3", {kRows, kHidden / 16}, blocks);
      add(module + (compressed ? "_global_scale" : "_scale_2"), "F32",
          compressed ? std::vector<int64_t>{1} : std::vector<int64_t>{},
          std::string(reinterpret_cast<const char*>(&scale), 4));
    }
  }
  std::shared_ptr<Checkpoint> open() {
    const std::string text = header_.dump();
    const uint64_t length = text.size();
    std::ofstream(folder_ / "model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << text << data_;
    std::ofstream(folder_ / "config.json") << "{}";
    const auto checkpoint = Checkpoint::open(folder_.string());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    return *checkpoint;
  }
  std::string error(ExpertPart part, bool mxfp4 = true) {
    const auto found = find_experts(*open(), tiny_config(mxfp4), 0, part);
    return found ? "found" : found.error().message();
  }

  fs::path folder_;
  nlohmann::ordered_json header_ = nlohmann::ordered_json::object();
  std::string data_;
};

TEST_F(ExpertTensors, mxfp4_rows_of_gate_and_up_take_turns) {
  add_mxfp4();
  const auto checkpoint = open();
  for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp}) {
    const auto source = find_experts(*checkpoint, tiny_config(true), 0, part);
    ASSERT_TRUE(source.has_value()) << source.error().message();
    EXPECT_EQ(source->format, Format::kMXFP4);
    EXPECT_FALSE(source->in_place());
    for (int expert = 0; expert < kExperts; ++expert) {
      std::byte rows[kRows * 17];
      copy_expert(*source, source->stored(expert), rows);
      for (int row = 0; row < kRows; ++row) {
        const int stored = expert * 2 * kRows + 2 * row + (part == ExpertPart::kUp);
        EXPECT_EQ(static_cast<int>(rows[row * 17]), 100 + stored);
        float values[32];
        ASSERT_TRUE(dequantize_row(Format::kMXFP4, rows + row * 17, 32, values).ok());
        const float scale = std::ldexp(0.5f, 100 + stored - 127);
        for (int k = 0; k < 32; ++k) {
          const int byte = (stored * 16 + k / 2) & 255, nibble = k % 2 == 0 ? byte & 15 : byte >> 4;
          EXPECT_EQ(values[k], scale * static_cast<float>(kE2M1Twice[nibble])) << row << " " << k;
        }
      }
    }
    const auto bias = part_of_biases(*source, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    const std::vector<float> even = {0, 2, 4, 6, 8, 10}, odd = {1, 3, 5, 7, 9, 11};
    EXPECT_EQ(bias, part == ExpertPart::kGate ? even : odd);
  }
}

TEST_F(ExpertTensors, bf16_is_turned) {
  add_bf16("gate_up_proj", {kExperts, kHidden, 2 * kWidth});
  add_bf16("gate_up_proj_bias", {kExperts, 2 * kWidth});
  const auto checkpoint = open();
  const auto source = find_experts(*checkpoint, tiny_config(false), 0, ExpertPart::kUp);
  ASSERT_TRUE(source.has_value()) << source.error().message();
  std::vector<std::byte> rows(kWidth * kHidden * 2);
  copy_expert(*source, source->stored(1), rows.data());
  std::vector<float> values(kWidth * kHidden);
  ASSERT_TRUE(dequantize_row(Format::kBF16, rows.data(), kWidth * kHidden, values.data()).ok());
  for (int row = 0; row < kWidth; ++row) {
    for (int k = 0; k < kHidden; ++k) EXPECT_EQ(values[row * kHidden + k], (kHidden + k) * 2 * kWidth + 2 * row + 1);
  }
}

ModelConfig unbiased_config() {
  ModelConfig config = tiny_config(false);
  config.expert_bias = false;
  config.quantization.by_tensor = true;
  return config;
}

class ExpertsInNvfp4 : public ExpertTensors, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Spellings, ExpertsInNvfp4, ::testing::Bool());

TEST_P(ExpertsInNvfp4, each_has_its_own_tensors_and_scale) {
  add_nvfp4(GetParam());
  const auto checkpoint = open();
  const auto source = find_experts(*checkpoint, unbiased_config(), 0, ExpertPart::kGate);
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ(source->format, Format::kNVFP4);
  EXPECT_TRUE(source->scaled() && !source->in_place());
  for (int e = 0; e < kExperts; ++e) {
    std::vector<std::byte> rows(kRows * 18);
    copy_expert(*source, source->stored(e), rows.data());
    EXPECT_TRUE(check_expert(*source, e, rows.data()).ok());
    float stored, values[kHidden];
    std::memcpy(&stored, source->each[e].scales.data, 4);
    const std::vector<float> scales = scales_of(source->each[e], {stored});
    ASSERT_EQ(scales.size(), size_t{kRows});
    for (int row = 0; row < kRows; ++row) {
      ASSERT_TRUE(dequantize_row(Format::kNVFP4, rows.data() + row * 18, kHidden, values).ok());
      EXPECT_EQ(values[0] * scales[row], 6 * (1 + row) * std::ldexp(1.0f, e));
      for (int k = 1; k < kHidden; ++k) EXPECT_EQ(values[k], 0.0f);
    }
  }
}

TEST_P(ExpertsInNvfp4, a_shared_expert_stored_alike_joins_them) {
  add_nvfp4(GetParam());
  const auto checkpoint = open();
  auto source = find_experts(*checkpoint, unbiased_config(), 0, ExpertPart::kGate);
  ASSERT_TRUE(source.has_value()) << source.error().message();
  MatrixSource shared = source->each[1];
  shared.values.name = "shared";
  ASSERT_TRUE(join_shared_expert(shared, &*source));
  EXPECT_EQ(source->experts, kExperts + 1);
  ASSERT_EQ(source->each.size(), size_t{kExperts + 1});
  EXPECT_EQ(source->each.back().values.name, "shared");
  std::vector<std::byte> rows(kRows * 18), same(kRows * 18);
  copy_expert(*source, source->stored(kExperts), rows.data());
  copy_expert(*source, source->stored(1), same.data());
  EXPECT_EQ(rows, same);
}

TEST_P(ExpertsInNvfp4, one_stored_otherwise_does_not) {
  add_nvfp4(GetParam());
  const auto checkpoint = open();
  const auto found = find_experts(*checkpoint, unbiased_config(), 0, ExpertPart::kGate);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  MatrixSource other[4];
  for (MatrixSource& shared : other) shared = found->each[0];
  other[0].rows *= 2, other[1].format = Format::kF8E4M3;
  other[2].layout = ScaleLayout::kChannel, other[3].requantized = true;
  for (const MatrixSource& shared : other) {
    ExpertSource source = *found;
    EXPECT_FALSE(join_shared_expert(shared, &source));
    EXPECT_EQ(source.experts, kExperts);
  }
}

TEST_P(ExpertsInNvfp4, what_is_missing_or_unlike_is_named) {
  const auto gate = [&](const char* suffix) { return kPrefix + "1.gate_proj.weight" + suffix; };
  const auto error_of = [&] {
    const auto found = find_experts(*open(), unbiased_config(), 0, ExpertPart::kGate);
    return found ? "found" : found.error().message();
  };
  const std::string scale = gate(GetParam() ? "_global_scale" : "_scale_2");
  add_nvfp4(GetParam());
  const auto whole = header_;
  const auto rename = [&](const std::string& name) {  // the bytes stay, so that the file is whole
    header_ = whole;
    const auto entry = header_.at(name);
    header_.erase(name);
    header_["other"] = entry;
  };
  rename(scale);
  EXPECT_EQ(error_of(), "missing tensors: " + scale);
  rename(gate("_scale"));
  EXPECT_EQ(error_of(), "missing tensors: " + gate("_scale"));
  header_ = whole;
  header_[gate("_scale")]["dtype"] = "U8";
  EXPECT_EQ(error_of(), "tensor " + gate("_scale") + " is U8 instead of F8_E4M3");
  if (GetParam()) return;
  rename(gate(""));
  add_bf16("1.gate_proj.weight", {kRows, kHidden});
  EXPECT_EQ(error_of(), "tensor " + gate("") + " is BF16, though " + gate("_scale_2") + " is there");
  for (const char* suffix : {"_scale", "_scale_2"}) {
    const auto entry = header_.at(gate(suffix));
    header_.erase(gate(suffix));
    header_[std::string("unlike") + suffix] = entry;
  }
  EXPECT_EQ(error_of(), "tensor " + gate("") + " is BF16, though expert 0's is NVFP4");
}

TEST_F(ExpertTensors, halves_of_one_tensor_are_gate_and_up) {
  add_bf16("gate_up_proj", {kExperts, 2 * kWidth, kHidden});
  const auto checkpoint = open();
  ModelConfig config = unbiased_config();
  config.expert_halves = true;
  const auto source = find_experts(*checkpoint, config, 0, ExpertPart::kUp);
  ASSERT_TRUE(source.has_value()) << source.error().message();
  ASSERT_TRUE(source->in_place());
  const TensorView rows = source->stored(1)[0];
  ASSERT_EQ(rows.bytes, size_t{kWidth * kHidden * 2});
  std::vector<float> values(kWidth * kHidden);
  ASSERT_TRUE(dequantize_row(Format::kBF16, rows.data, kWidth * kHidden, values.data()).ok());
  for (int i = 0; i < kWidth * kHidden; ++i) EXPECT_EQ(values[i], 3 * kWidth * kHidden + i);
}

TEST_F(ExpertTensors, a_shared_expert_joins_those_that_one_tensor_holds) {
  add_bf16("gate_up_proj", {kExperts, 2 * kWidth, kHidden});
  add_bf16("shared", {kWidth, kHidden});
  const auto checkpoint = open();
  ModelConfig config = unbiased_config();
  config.expert_halves = true;
  TensorFinder finder(*checkpoint);
  const MatrixSource shared = find_matrix(finder, config.quantization, kPrefix + "shared", kWidth, kHidden);
  ASSERT_TRUE(finder.ok());
  const auto found = find_experts(*checkpoint, config, 0, ExpertPart::kUp);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  ExpertSource source = *found;
  ASSERT_TRUE(join_shared_expert(shared, &source));
  ASSERT_TRUE(source.in_place());
  EXPECT_FALSE(source.scaled());
  for (int e = 0; e < kExperts; ++e) {
    const TensorView rows = source.stored(e)[0], before = found->stored(e)[0];
    EXPECT_TRUE(rows.data == before.data && rows.bytes == before.bytes) << e;
  }
  EXPECT_EQ(source.stored(kExperts)[0].data, shared.values.data);
  ExpertSource turned = *found;
  turned.transposed = true;  // no expert's rows are in one piece
  EXPECT_FALSE(join_shared_expert(shared, &turned));
  turned = *found;
  turned.bias.name = "bias";
  EXPECT_FALSE(join_shared_expert(shared, &turned));
}

TEST_F(ExpertTensors, what_is_wrong_is_named) {
  EXPECT_EQ(error(ExpertPart::kGate), "missing tensors: " + kPrefix + "gate_up_proj_blocks");
  EXPECT_EQ(error(ExpertPart::kDown, false), "missing tensors: " + kPrefix + "down_proj");
}

TEST_F(ExpertTensors, scales_must_fit) {
  add_mxfp4(2 * kRows + 1);
  EXPECT_EQ(error(ExpertPart::kGate),
            "misshapen tensors: " + kPrefix + "gate_up_proj_scales has the shape [3, 5, 1] instead of [3, 4, 1]");
}

TEST_F(ExpertTensors, blocks_without_scales_or_of_another_type) {
  std::string blocks(kExperts * 2 * kRows * 16, 'x');
  add("gate_up_proj_blocks", "U8", {kExperts, 2 * kRows, 1, 16}, blocks);
  EXPECT_EQ(error(ExpertPart::kGate, false), "missing tensors: " + kPrefix + "gate_up_proj_scales");
  add_bf16("gate_up_proj_scales", {kExperts, 2 * kRows, 1});
  EXPECT_EQ(error(ExpertPart::kGate), "tensor " + kPrefix + "gate_up_proj_scales is BF16 instead of U8");
}

// The names of openai/gpt-oss-20b (safetensors, 459 tensors) and of llama.cpp's conversion of it (GGUF, as many), as
// public listings have them: each is one that the loader asks for, and none is left to ask for.
TEST(GptOssNames, published_files_name_every_tensor) {
  const Expected<ModelConfig> config = parse_hf_config(
      nlohmann::json::parse(std::ifstream(TAILRACE_SOURCE_DIR "/configs/gpt-oss-20b/config.json")), "config.json");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  std::set<std::string> asked_hf, asked_gguf, hf, gguf;
  for (const ModelTensor& tensor : model_tensors(*config)) asked_hf.insert(tensor.name), asked_gguf.insert(tensor.name);
  hf = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  for (const char* name : {"token_embd.weight", "output_norm.weight", "output.weight"}) {
    gguf.insert(canonical_gguf_name(name, "gpt-oss"));
  }
  for (int layer = 0; layer < 24; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".", experts = prefix + "mlp.experts.";
    for (const char* part : {"gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias", "down_proj_blocks",
                             "down_proj_scales", "down_proj_bias"}) {
      asked_hf.insert(experts + part), hf.insert(canonical_hf_name(experts + part));
    }
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      for (const char* kind : {".weight", ".bias"}) asked_gguf.insert(experts + part + kind);
    }
    for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.sinks",
                             "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
                             "self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias",
                             "self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.router.weight",
                             "mlp.router.bias"}) {
      hf.insert(canonical_hf_name(prefix + name));
    }
    for (const char* name :
         {"attn_norm.weight", "post_attention_norm.weight", "attn_sinks.weight", "attn_q.weight", "attn_q.bias",
          "attn_k.weight", "attn_k.bias", "attn_v.weight", "attn_v.bias", "attn_output.weight", "attn_output.bias",
          "ffn_gate_inp.weight", "ffn_gate_inp.bias", "ffn_gate_exps.weight", "ffn_gate_exps.bias",
          "ffn_up_exps.weight", "ffn_up_exps.bias", "ffn_down_exps.weight", "ffn_down_exps.bias"}) {
      gguf.insert(canonical_gguf_name("blk." + std::to_string(layer) + "." + name, "gpt-oss"));
    }
  }
  EXPECT_EQ(hf, asked_hf);
  EXPECT_EQ(gguf, asked_gguf);
  EXPECT_EQ(hf.size(), 459u);
  EXPECT_EQ(gguf.size(), 459u);
}

}  // namespace
}  // namespace tailrace
