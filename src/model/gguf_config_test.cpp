#include <gtest/gtest.h>

#include <cmath>

#include "gguf_writer.h"
#include "model/model_config.h"
#include "model/model_tensors.h"

namespace tailrace {
namespace {

constexpr int kLayers = 7;

// Metadata and tensors (of zeros) of a tiny model: 4 heads of 8, 2 KV heads.
GgufWriter tiny(const std::string& arch, uint32_t heads = 4) {
  GgufWriter writer;
  writer.string("general.architecture", arch);
  writer.u32(arch + ".block_count", kLayers);
  writer.u32(arch + ".context_length", 512);
  writer.u32(arch + ".embedding_length", 32);
  writer.u32(arch + ".feed_forward_length", 48);
  writer.u32(arch + ".attention.head_count", heads);
  writer.u32(arch + ".attention.head_count_kv", 2);
  writer.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (const int64_t dim : shape) elements *= dim;
    writer.tensor(name, Format::kF32, shape, std::string(elements * 4, '\0'));
  };
  add("token_embd.weight", {100, 32});
  add("output_norm.weight", {32});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    for (const char* norm : {"attn_norm", "ffn_norm"}) add(prefix + norm + ".weight", {32});
    if (arch == "gemma3") {
      for (const char* norm : {"post_attention_norm", "post_ffw_norm"}) add(prefix + norm + ".weight", {32});
    }
    if (arch == "gemma3" || arch == "qwen3") {
      for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(prefix + norm + ".weight", {8});
    }
    if (arch == "qwen2") {
      add(prefix + "attn_q.bias", {32});
      add(prefix + "attn_k.bias", {16});
      add(prefix + "attn_v.bias", {16});
    }
    add(prefix + "attn_q.weight", {32, 32});
    add(prefix + "attn_k.weight", {16, 32});
    add(prefix + "attn_v.weight", {16, 32});
    add(prefix + "attn_output.weight", {32, 32});
    add(prefix + "ffn_gate.weight", {48, 32});
    add(prefix + "ffn_up.weight", {48, 32});
    add(prefix + "ffn_down.weight", {32, 48});
  }
  return writer;
}

// The bytes outlive the checkpoint that views them.
struct Opened {
  explicit Opened(const GgufWriter& writer) : bytes(writer.bytes()) {
    auto gguf = GgufFile::open_memory(std::as_bytes(std::span(bytes.data(), bytes.size())), "tiny.gguf");
    EXPECT_TRUE(gguf.has_value()) << gguf.error().message();
    checkpoint = *Checkpoint::from_gguf(*gguf, "tiny.gguf");
  }
  Expected<ModelConfig> config() const { return load_model_config(*checkpoint); }

  std::string bytes;
  std::shared_ptr<Checkpoint> checkpoint;
};

void expect_rejected(const GgufWriter& writer, const std::string& words, StatusCode code = StatusCode::kDataLoss) {
  const Opened opened(writer);
  const Expected<ModelConfig> config = opened.config();
  ASSERT_FALSE(config.has_value()) << words;
  EXPECT_EQ(config.error().code(), code) << config.error().message();
  EXPECT_EQ(config.error().message().find("tiny.gguf: "), 0u) << config.error().message();
  EXPECT_NE(config.error().message().find(words), std::string::npos) << config.error().message();
}

TEST(GgufConfig, every_architecture_has_all_its_tensors) {
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3"}) {
    GgufWriter writer = tiny(arch);
    if (arch == std::string("gemma3")) writer.u32("gemma3.attention.sliding_window", 16);
    const Opened opened(writer);
    const Expected<ModelConfig> config = opened.config();
    ASSERT_TRUE(config.has_value()) << config.error().message();
    EXPECT_STREQ(architecture_name(config->architecture), arch);
    EXPECT_EQ(config->vocab, 100);
    EXPECT_EQ(config->head_dim, 8);
    EXPECT_TRUE(config->tied_embeddings);
    EXPECT_FALSE(config->norm_plus_one);
    const auto unused = check_model_tensors(*opened.checkpoint, *config);
    ASSERT_TRUE(unused.has_value()) << arch << ": " << unused.error().message();
    EXPECT_TRUE(unused->empty()) << arch << ": " << unused->front();
  }
}

TEST(GgufConfig, only_llama_has_pairwise_q_and_k) {
  for (const char* arch : {"llama", "qwen2"}) {
    const Opened opened(tiny(arch));
    const bool llama = arch == std::string("llama");
    const auto is_interleaved = [&](const char* part) {
      const TensorView* tensor = opened.checkpoint->find(std::string("model.layers.3.self_attn.") + part + ".weight");
      EXPECT_NE(tensor, nullptr) << part;
      EXPECT_EQ(tensor->head_dim, tensor->rope_interleaved ? 8 : 0);
      return tensor->rope_interleaved;
    };
    EXPECT_EQ(is_interleaved("q_proj"), llama);
    EXPECT_EQ(is_interleaved("k_proj"), llama);
    EXPECT_FALSE(is_interleaved("v_proj"));
    EXPECT_FALSE(is_interleaved("o_proj"));
  }
}

TEST(GgufConfig, output_weight_is_the_head) {
  GgufWriter writer = tiny("llama");
  writer.tensor("output.weight", Format::kF16, {100, 32}, std::string(6400, '\0'));
  const Opened opened(writer);
  EXPECT_FALSE(opened.config()->tied_embeddings);
  EXPECT_NE(opened.checkpoint->find("lm_head.weight"), nullptr);
}

TEST(GgufConfig, rope_freqs_divide_the_frequencies) {
  GgufWriter writer = tiny("llama");
  writer.f32("llama.rope.freq_base", 500000.0f);
  const float divisors[4] = {1, 1, 4, 8};
  writer.tensor("rope_freqs.weight", Format::kF32, {4}, std::string(reinterpret_cast<const char*>(divisors), 16));
  const Opened opened(writer);
  const Expected<ModelConfig> config = opened.config();
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kDivisors);
  EXPECT_EQ(config->ropes[0].divisors, (std::vector<float>{1, 1, 4, 8}));
  const auto unused = check_model_tensors(*opened.checkpoint, *config);
  EXPECT_TRUE(unused.has_value() && unused->empty());

  writer.tensors.back().data.replace(12, 4, 4, '\0');
  expect_rejected(writer, "rope_freqs.weight needs 4 positive numbers");
}

TEST(GgufConfig, gemma3_slides_all_but_every_sixth_layer) {
  GgufWriter writer = tiny("gemma3");
  writer.u32("gemma3.attention.sliding_window", 16);
  writer.f32("gemma3.rope.freq_base", 1e6f);
  writer.string("gemma3.rope.scaling.type", "linear");
  writer.f32("gemma3.rope.scaling.factor", 8.0f);
  const Opened opened(writer);
  const Expected<ModelConfig> config = opened.config();
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->window, (std::vector<int32_t>{16, 16, 16, 16, 16, 0, 16}));
  EXPECT_EQ(config->rope_of_layer, (std::vector<int32_t>{1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(config->ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->ropes[0].factor, 8);
  EXPECT_EQ(config->ropes[1].theta, 1e4);
  EXPECT_EQ(config->embed_scale, 5.65625f);  // sqrt(32) = 5.657 in bfloat16
  EXPECT_TRUE(config->post_norms && config->qk_norm);
  EXPECT_FALSE(config->norm_plus_one);       // the file's norms hold the 1
  expect_rejected(tiny("gemma3"), "gemma3.attention.sliding_window is missing");
}

TEST(GgufConfig, end_tokens_come_from_ids_and_texts) {
  GgufWriter writer = tiny("qwen2");
  writer.u32("tokenizer.ggml.eos_token_id", 3);
  writer.u32("tokenizer.ggml.eot_token_id", 5);
  writer.u32("tokenizer.ggml.bos_token_id", 1);
  writer.strings("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>", "c", "<|eot_id|>"});
  writer.i32s("tokenizer.ggml.token_type", {1, 3, 3, 3, 1});  // the last is ordinary text
  const Opened opened(writer);
  const Expected<ModelConfig> config = opened.config();
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(config->bos_id, 1);
  writer.u32("tokenizer.ggml.eom_token_id", 100);
  expect_rejected(writer, "tokenizer.ggml.eom_token_id is 100, outside the vocabulary");
}

TEST(GgufConfig, names_what_is_not_supported) {
  expect_rejected(tiny("mamba"), "architecture mamba is not supported; supported are llama, qwen2, qwen3, gemma3",
                  StatusCode::kUnsupported);
  GgufWriter writer = tiny("llama");
  writer.u32("llama.expert_count", 8);
  expect_rejected(writer, "mixtures of experts of this architecture", StatusCode::kUnsupported);
  writer = tiny("llama");
  writer.string("llama.rope.scaling.type", "longrope");
  expect_rejected(writer, "rope scaling 'longrope' is not supported", StatusCode::kUnsupported);
  writer = tiny("llama");
  writer.u32("llama.attention.key_length", 8);
  writer.u32("llama.attention.value_length", 16);
  expect_rejected(writer, "key_length and value_length differ", StatusCode::kUnsupported);
}

TEST(GgufConfig, gpt_oss) {
  GgufWriter writer = tiny("gpt-oss");
  writer.u32("gpt-oss.expert_count", 4);
  writer.u32("gpt-oss.expert_used_count", 2);
  writer.u32("gpt-oss.expert_feed_forward_length", 24);
  GgufWriter endless = writer;
  expect_rejected(endless, "gpt-oss.attention.sliding_window is missing");
  writer.u32("gpt-oss.attention.sliding_window", 128);
  writer.string("gpt-oss.rope.scaling.type", "yarn");
  writer.f32("gpt-oss.rope.scaling.factor", 32);
  writer.u32("gpt-oss.rope.scaling.original_context_length", 4096);
  const Opened opened(writer);
  const Expected<ModelConfig> parsed = opened.config();
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  const ModelConfig& config = *parsed;
  EXPECT_EQ(config.architecture, Architecture::kGptOss);
  EXPECT_EQ(config.experts, 4);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_EQ(config.intermediate, 24);
  EXPECT_EQ(config.window[0], 128);
  EXPECT_EQ(config.window[1], 0);
  EXPECT_FALSE(config.ropes[0].truncate);
  EXPECT_NEAR(config.ropes[0].attention_factor, 1.34657359, 1e-7);
  EXPECT_TRUE(config.sinks);
  expect_rejected(tiny("gpt-oss"), "the key gpt-oss.expert_count is missing");
}

TEST(GgufConfig, names_what_is_out_of_range) {
  GgufWriter writer;
  writer.string("general.architecture", "qwen2");
  expect_rejected(writer, "the key qwen2.embedding_length is missing");
  writer = tiny("qwen2");
  writer.u32("qwen2.attention.key_length", 4000);
  expect_rejected(writer, "qwen2.attention.key_length is 4000, above 1024");
  GgufWriter no_heads = tiny("qwen2", 0);
  expect_rejected(no_heads, "no multiple of the head count");
  no_heads.u32("qwen2.attention.key_length", 8);
  expect_rejected(no_heads, "the number of attention heads is 0");
  writer = tiny("qwen2");
  writer.f32("qwen2.rope.freq_base", -1.0f);
  expect_rejected(writer, "rope theta is out of range");
  writer = tiny("qwen2");
  writer.u32("qwen2.rope.dimension_count", 64);
  expect_rejected(writer, "rotates 64 dims of heads of 8");
}

}  // namespace
}  // namespace tailrace
