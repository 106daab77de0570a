#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gguf_writer.h"
#include "weights/safetensors.h"
#include "weights/tensor_names.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string pattern = (fs::temp_directory_path() / "tailrace-ckpt-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  // F32 tensors of one element each.
  void write_safetensors(const std::string& name, const std::vector<std::string>& tensors) const {
    nlohmann::json header;
    for (size_t i = 0; i < tensors.size(); ++i) {
      header[tensors[i]] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {4 * i, 4 * i + 4}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    write(name, std::string(reinterpret_cast<const char*>(&length), 8) + text + std::string(4 * tensors.size(), 'x'));
  }
  std::string error(const std::string& path) const {
    const auto checkpoint = Checkpoint::open(path);
    return checkpoint ? "opened" : checkpoint.error().message();
  }
  static GgufWriter tiny_gguf(uint32_t heads = 2) {
    GgufWriter writer;
    writer.string("general.architecture", "llama");
    writer.u32("llama.embedding_length", 8);
    writer.u32("llama.attention.head_count", heads);
    writer.tensor("blk.0.attn_q.weight", Format::kF32, {8, 8}, std::string(256, 'x'));
    writer.tensor("blk.0.attn_q.bias", Format::kF32, {8}, std::string(32, 'x'));
    return writer;
  }

  fs::path folder_;
};

TEST_F(CheckpointTest, opens_a_directory_under_canonical_names) {
  write("config.json", R"({"model_type": "x"})");
  write("generation_config.json", R"({"eos_token_id": 2})");
  write_safetensors("model.safetensors", {"model.language_model.norm.weight", "lm_head.weight", "vision_tower.a"});
  const auto checkpoint = Checkpoint::open(folder_.string());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  EXPECT_EQ((**checkpoint).config()->at("model_type"), "x");
  EXPECT_EQ((**checkpoint).generation_config()->at("eos_token_id"), 2);
  EXPECT_EQ((**checkpoint).gguf(), nullptr);
  EXPECT_EQ((**checkpoint).directory(), folder_.string());
  ASSERT_EQ((**checkpoint).tensors().size(), 3u);
  EXPECT_EQ((**checkpoint).tensors()[0].name, "lm_head.weight");
  EXPECT_NE((**checkpoint).find("model.norm.weight"), nullptr);
  EXPECT_EQ((**checkpoint).find("model.norm"), nullptr);
  EXPECT_EQ((**checkpoint).tensor_bytes(), 12u);
}

TEST_F(CheckpointTest, two_spellings_of_one_tensor_are_a_duplicate) {
  write("config.json", "{}");
  write_safetensors("model.safetensors", {"model.language_model.norm.weight", "language_model.model.norm.weight"});
  EXPECT_NE(error(folder_.string()).find("tensor model.norm.weight: appears twice"), std::string::npos);
}

TEST_F(CheckpointTest, a_configuration_is_read_of_whatever_can_be_opened) {
  tiny_gguf().write((folder_ / "a.gguf").string());
  for (const std::string& path : {folder_.string(), (folder_ / "a.gguf").string()}) {
    const auto checkpoint = Checkpoint::open_config(path);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    EXPECT_NE((**checkpoint).gguf(), nullptr);
  }
  write("config.json", R"({"model_type": "x"})");
  const auto checkpoint = Checkpoint::open_config(folder_.string());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  EXPECT_EQ((**checkpoint).config()->at("model_type"), "x");  // weights beside it are not asked for
}

TEST_F(CheckpointTest, opens_a_gguf_by_file_or_by_folder) {
  tiny_gguf().write((folder_ / "a.gguf").string());
  for (const std::string& path : {folder_.string(), (folder_ / "a.gguf").string()}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    EXPECT_EQ((**checkpoint).config(), nullptr);
    EXPECT_NE((**checkpoint).gguf(), nullptr);
    EXPECT_EQ((**checkpoint).directory(), folder_.string());
    for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias"}) {
      const TensorView* tensor = (**checkpoint).find(name);
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_TRUE(tensor->rope_interleaved);
      EXPECT_EQ(tensor->head_dim, 4);
      std::vector<std::byte> read(tensor->bytes);
      EXPECT_TRUE((**checkpoint).read(*tensor, read.data()).ok());
      EXPECT_EQ(static_cast<char>(read[0]), 'x');
    }
  }
  tiny_gguf().write((folder_ / "b.gguf").string());
  EXPECT_NE(error(folder_.string()).find("holds 2 .gguf files; name one of them"), std::string::npos);
}

TEST_F(CheckpointTest, rejects_ggufs_it_cannot_use) {
  GgufWriter writer = tiny_gguf();
  writer.u32("split.count", 3);
  writer.write((folder_ / "a.gguf").string());
  EXPECT_NE(error(folder_.string()).find("is one of 3 parts"), std::string::npos);
  tiny_gguf(3).write((folder_ / "a.gguf").string());  // heads of 8 / 3 = 2 rows fit: 8 = 4 * 2
  EXPECT_EQ(error(folder_.string()), "opened");
  tiny_gguf(8).write((folder_ / "a.gguf").string());
  EXPECT_NE(error(folder_.string()).find("is not made of heads of 1 rows"), std::string::npos);
  tiny_gguf(0).write((folder_ / "a.gguf").string());
  EXPECT_NE(error(folder_.string()).find("llama.attention.head_count is 0"), std::string::npos);
}

TEST_F(CheckpointTest, says_what_is_wrong_with_a_path) {
  EXPECT_NE(error((folder_ / "absent").string()).find("no such file or directory"), std::string::npos);
  EXPECT_NE(error(folder_.string()).find("holds neither config.json nor a .gguf file"), std::string::npos);
  write("config.json", "{}");
  EXPECT_NE(error(folder_.string()).find("neither model.safetensors nor"), std::string::npos);
  write("pytorch_model.bin", "x");
  EXPECT_NE(error(folder_.string()).find("pytorch_model.bin is not supported"), std::string::npos);
  write_safetensors("model.safetensors", {"a"});
  EXPECT_EQ(error(folder_.string()), "opened");
  EXPECT_NE(error((folder_ / "model.safetensors").string()).find("give the directory"), std::string::npos);
  write("config.json", "[1]");
  EXPECT_NE(error(folder_.string()).find("config.json: not a JSON object"), std::string::npos);
  write("config.json", "{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}");
  EXPECT_NE(error(folder_.string()).find("config.json: nested too deeply"), std::string::npos);
  write("config.json", "{");
  EXPECT_NE(error(folder_.string()).find("config.json: not valid JSON"), std::string::npos);
}

TEST(TensorNames, gguf_to_hugging_face) {
  const auto llama = [](const char* name) { return canonical_gguf_name(name, "llama"); };
  EXPECT_EQ(llama("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(llama("output.weight"), "lm_head.weight");
  EXPECT_EQ(llama("output_norm.weight"), "model.norm.weight");
  EXPECT_EQ(llama("blk.12.attn_output.weight"), "model.layers.12.self_attn.o_proj.weight");
  EXPECT_EQ(llama("blk.0.attn_k.bias"), "model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(llama("blk.0.ffn_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(llama("rope_freqs.weight"), "rope_freqs.weight");
  EXPECT_EQ(llama("blk.0.other.weight"), "blk.0.other.weight");
  EXPECT_EQ(llama("blk.weight"), "blk.weight");
  const auto gemma = [](const char* name) { return canonical_gguf_name(name, "gemma3"); };
  EXPECT_EQ(gemma("blk.1.attn_norm.weight"), "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(gemma("blk.1.ffn_norm.weight"), "model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_EQ(gemma("blk.1.post_attention_norm.weight"), "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(gemma("blk.1.post_ffw_norm.weight"), "model.layers.1.post_feedforward_layernorm.weight");
}

}  // namespace
}  // namespace tailrace
