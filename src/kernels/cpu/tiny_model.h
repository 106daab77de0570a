// TinyModel and BackendHarness: a random small model in any weight format and a backend that runs steps of it, for tests.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"

namespace tailrace {

// Whose experts: what is around and beside them.
enum class TinyMixture : uint8_t { kGptOss, kGemma, kQwen };

struct TinyConfig {
  Format format = Format::kF32, down_format = Format::kF32, head_format = Format::kF32;
  int hidden = 96, layers = 2, q_heads = 6, kv_heads = 2, head_dim = 32, rotary_dim = 32, intermediate = 160, vocab = 203;
  bool bias = false, qk_norm = false, post_norm = false, gelu = false, sinks = false;
  float attention_softcap = 0, final_softcap = 0;
  int window = 0;         // of the odd layers, which then form group 1
  int experts = 0, top_k = 2;  // a mixture in place of the MLP
  TinyMixture mixture = TinyMixture::kGptOss;
  bool gemma4 = false;  // values are normed, and in group 0 they are the keys; MLPs scale the residual
  int window_head_dim = 0;  // of group 1, where it differs
  bool gated = false;       // attention outputs
  int recurrent = 0;        // layers by the gated delta rule in front of each that attends
  int k_heads = 2, v_heads = 6, k_dim = 32, v_dim = 48, conv_width = 4;  // of those
};

// Blocks of a stored format with random codes and scales such that weights are of size 1 / sqrt(cols).
inline std::vector<std::byte> random_stored(Format format, int64_t rows, int64_t cols, std::mt19937_64& rng) {
  const FormatTraits traits = format_traits(format);
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * stored_row_bytes(format, cols));
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(cols)));
  const auto put_half = [](std::byte* at, float value) {  // normal numbers only
    const auto bits = std::bit_cast<uint32_t>(value);
    const auto half = static_cast<uint16_t>(((bits >> 16) & 0x8000u) | ((((bits >> 23) & 0xffu) - 112u) << 10) |
                                            ((bits >> 13) & 0x3ffu));
    std::memcpy(at, &half, 2);
  };
  const auto unit = [&] { return (0.7f + 0.6f * static_cast<float>(rng() % 1000) / 1000) / std::sqrt(static_cast<float>(cols)); };
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
    std::byte* block = bytes.data() + at;
    switch (format) {
      case Format::kF32: {
        const float value = normal(rng);
        std::memcpy(block, &value, 4);
        break;
      }
      case Format::kF16: put_half(block, (rng() % 2 ? 1.0f : -1.0f) * unit()); break;
      case Format::kBF16: {
        const auto value = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(rng)) >> 16);
        std::memcpy(block, &value, 2);
        break;
      }
      case Format::kQ4_0: put_half(block, unit() / 4.6f); break;
      case Format::kQ5_0: put_half(block, unit() / 9.2f); break;
      case Format::kQ8_0: put_half(block, unit() / 74.0f); break;
      case Format::kQ4_1:
      case Format::kQ5_1: {
        const float levels = format == Format::kQ4_1 ? 15.0f : 31.0f, d = unit() / (0.29f * levels);
        put_half(block, d);
        put_half(block + 2, -d * levels / 2);
        break;
      }
      case Format::kQ4_K:
      case Format::kQ5_K: {
        const float levels = format == Format::kQ4_K ? 15.0f : 31.0f, d = unit() / (40.0f * 0.29f * levels);
        put_half(block, d);
        put_half(block + 2, d * levels / 2);
        break;
      }
      case Format::kQ6_K: put_half(block + 208, unit() / (18.0f * 74.0f)); break;
      case Format::kMXFP4:  // 2^-e / 3, the deviation of the codes being 2.9
        *block = static_cast<std::byte>(125 - std::ilogb(std::sqrt(static_cast<float>(cols))));
        break;
      case Format::kNVFP4: *block = static_cast<std::byte>(0x30 + rng() % 16); break;  // 0.5 to 1.9
      case Format::kU8: break;
      case Format::kF8E4M3: *block &= std::byte{0xbf}; break;  // below 2: the scales make the rest
    }
  }
  return bytes;
}

// Packs the same random weights for any backend: one seed, one model.
class TinyModel {
 public:
  TinyModel(const TinyConfig& config, const Backend& backend, uint64_t seed) : config_(config), backend_(backend), rng_(seed) {
    blocks.push_back(EmbedBlock{weight(config.format, config.vocab, config.hidden), 3.0f});
    for (int l = 0; l < config.layers; ++l) {
      for (int r = 0; r < config.recurrent; ++r) add_gated_delta(l * config.recurrent + r);
      add_layer(l);
    }
    blocks.push_back(HeadBlock{norm(config.hidden, true), weight(config.head_format, config.vocab, config.hidden),
                               config.final_softcap});
  }

  // Layers of a KV group, and its head_dim.
  int group_of(int layer) const { return config_.window > 0 ? layer % 2 : 0; }
  int layers_of(int group) const { return config_.window == 0 ? config_.layers : (config_.layers + 1 - group) / 2; }
  int head_dim_of(int group) const {
    return group == 1 && config_.window_head_dim > 0 ? config_.window_head_dim : config_.head_dim;
  }

  BlockList blocks;

 private:
  void add_layer(int layer) {
    const TinyConfig& c = config_;
    const int group = group_of(layer), dim = head_dim_of(group), in_group = c.window > 0 ? layer / 2 : layer;
    const int window = group == 1 ? c.window : 0;
    AttnInBlock in;
    in.norm = norm(c.hidden, true);
    in.q = weight(c.format, c.q_heads * dim, c.hidden, c.bias);
    in.k = weight(c.format, c.kv_heads * dim, c.hidden, c.bias);
    if (!c.gemma4 || group != 0) in.v = weight(c.down_format, c.kv_heads * dim, c.hidden, c.bias);
    in.q_norm = norm(dim, c.qk_norm);
    in.k_norm = norm(dim, c.qk_norm);
    in.v_norm = norm(dim, c.gemma4);
    const int rotary = std::min(c.rotary_dim, dim);
    in.rope = {floats(rotary / 2, [&](int i) { return std::pow(1000.0f + 9000.0f * static_cast<float>(group), -2.0f * static_cast<float>(i) / static_cast<float>(rotary)); }),
               rotary, 1.0f, group};
    in.q_heads = c.q_heads;
    in.kv_heads = c.kv_heads;
    in.head_dim = dim;
    in.group = group;
    in.layer = in_group;
    if (c.gated) in.gate = weight(c.format, c.q_heads * dim, c.hidden);
    blocks.push_back(in);
    blocks.push_back(AttentionBlock{c.q_heads, c.kv_heads, dim, group, in_group, window,
                                    1.0f / std::sqrt(static_cast<float>(dim)), c.attention_softcap,
                                    c.sinks ? floats(c.q_heads, [&](int) { return random(1.0f); }) : nullptr});
    blocks.push_back(
        AttnOutBlock{weight(c.format, c.hidden, c.q_heads * dim, c.bias), norm(c.hidden, c.post_norm), c.gated});
    if (c.experts > 0) return add_moe();
    MlpBlock mlp;
    mlp.norm = norm(c.hidden, true);
    mlp.gate = weight(c.format, c.intermediate, c.hidden);
    mlp.up = weight(c.format, c.intermediate, c.hidden);
    mlp.down = weight(c.down_format, c.hidden, c.intermediate);
    mlp.activation = c.gelu ? Activation::kGeluTanh : Activation::kSilu;
    mlp.post_norm = norm(c.hidden, c.post_norm);
    if (c.gemma4) mlp.out_scale = floats(1, [](int) { return 0.7f; });
    blocks.push_back(mlp);
  }

  void add_gated_delta(int layer) {
    const TinyConfig& c = config_;
    GatedDeltaBlock delta;
    delta.k_heads = c.k_heads, delta.v_heads = c.v_heads, delta.k_dim = c.k_dim, delta.v_dim = c.v_dim;
    delta.conv_width = c.conv_width;
    delta.layer = layer;
    delta.norm = norm(c.hidden, true);
    delta.qkv = weight(c.format, delta.channels(), c.hidden);
    delta.z = weight(c.format, c.v_heads * c.v_dim, c.hidden);
    delta.b = weight(Format::kF32, c.v_heads, c.hidden);
    delta.a = weight(Format::kF32, c.v_heads, c.hidden);
    delta.out = weight(c.down_format, c.hidden, c.v_heads * c.v_dim);
    delta.conv = floats(delta.channels() * c.conv_width, [&](int) { return random(0.7f); });
    delta.decay = floats(c.v_heads, [&](int h) { return -0.01f * std::exp2(1.5f * static_cast<float>(h)); });
    delta.dt_bias = floats(c.v_heads, [&](int) { return random(1.0f); });
    delta.out_norm = norm(c.v_dim, true);
    blocks.push_back(delta);
  }

  void add_moe() {
    const TinyConfig& c = config_;
    MoeBlock moe;
    moe.norm = norm(c.hidden, true);
    const bool gemma = c.mixture == TinyMixture::kGemma, qwen = c.mixture == TinyMixture::kQwen;
    moe.router = weight(Format::kF32, c.experts, c.hidden, !gemma && !qwen);
    moe.gate = experts(c.format, c.intermediate, c.hidden);
    moe.up = experts(c.format, c.intermediate, c.hidden);
    moe.down = experts(c.down_format, c.hidden, c.intermediate);
    moe.top_k = c.top_k;
    moe.clamped.limit = 1.5f;
    if (gemma || qwen) {
      moe.activation = moe.dense.activation = gemma ? Activation::kGeluTanh : Activation::kSilu;
      moe.dense.gate = weight(c.format, c.intermediate + 32, c.hidden);
      moe.dense.up = weight(c.format, c.intermediate + 32, c.hidden);
      moe.dense.down = weight(c.down_format, c.hidden, c.intermediate + 32);
      if (qwen) moe.dense.share = weight(Format::kBF16, 1, c.hidden);
    }
    if (gemma) {
      for (Norm* n : {&moe.router_norm, &moe.experts_post_norm, &moe.dense.norm, &moe.dense.post_norm, &moe.post_norm}) {
        *n = norm(c.hidden, true);
      }
      moe.expert_scale = floats(c.experts, [&](int) { return 1.0f + random(0.3f); });
      moe.out_scale = floats(1, [](int) { return 0.7f; });
    }
    blocks.push_back(moe);
  }

  ExpertWeights experts(Format format, int64_t rows, int64_t cols) {
    ExpertWeights out;
    out.count = config_.experts;
    for (int64_t e = 0; e < out.count; ++e) {
      const auto stored = random_stored(format, rows, cols, rng_);
      const TensorView tensor{.name = "w", .format = format, .shape = {rows, cols}, .data = stored.data(),
                              .bytes = stored.size()};
      if (e == 0) {
        out.stride = static_cast<int64_t>((*backend_.packed_bytes(tensor) + 63) / 64 * 64);
        out.first = {format, rows, cols, claim(static_cast<size_t>(out.stride * out.count))};
        if (config_.mixture == TinyMixture::kGptOss) {
          out.first.bias = floats(rows * out.count, [&](int) { return random(0.3f); });
        }
        add_scales(&out.first, out.count);
      }
      CHECK(backend_.pack(tensor, const_cast<void*>(out.of(e).data)).ok());
    }
    return out;
  }

  void* claim(size_t bytes) {
    auto& memory = packed_.emplace_back(bytes / 64 + 2);
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  }

  float random(float spread) { return std::normal_distribution<float>(0.0f, spread)(rng_); }

  template <typename F>
  const float* floats(int64_t n, const F& f) {
    auto& values = floats_.emplace_back(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = f(static_cast<int>(i));
    return values.data();
  }

  Norm norm(int64_t width, bool present) {
    if (!present) return {};
    return {floats(width, [&](int) { return 1.0f + random(0.2f); }), 1e-5f};
  }

  Weight weight(Format format, int64_t rows, int64_t cols, bool bias = false) {
    const auto stored = random_stored(format, rows, cols, rng_);
    const TensorView tensor{.name = "w", .format = format, .shape = {rows, cols}, .data = stored.data(), .bytes = stored.size()};
    const auto bytes = backend_.packed_bytes(tensor);
    CHECK(bytes.has_value());
    void* data = claim(*bytes);
    CHECK(backend_.pack(tensor, data).ok());
    Weight w{format, rows, cols, data, bias ? floats(rows, [&](int) { return random(0.3f); }) : nullptr};
    add_scales(&w, 1);
    return w;
  }

  // Those of `count` matrices, where the format has any.
  void add_scales(Weight* w, int64_t count) {
    if (w->format != Format::kF8E4M3 && w->format != Format::kNVFP4) return;
    w->scale_cols = w->rows % 2 == 0 || w->format == Format::kNVFP4 ? w->cols : 128;
    const float size = (w->format == Format::kNVFP4 ? 0.3f : 4.0f) / std::sqrt(static_cast<float>(w->cols));
    w->scale = floats(count * w->rows * w->scales_per_row(),
                      [&](int i) { return size * (0.5f + 0.01f * static_cast<float>(i % 100)); });
  }

  struct Line {
    std::byte bytes[64];
  };
  TinyConfig config_;
  const Backend& backend_;
  std::mt19937_64 rng_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<Line>> packed_;
};

// Runs queued work when told to, so that a test sees what was read too early.
class DeferredStream : public Stream {
 public:
  void run(std::function<void()> work) override { queue_.push_back(std::move(work)); }
  void copy(void*, const void*, size_t) override { CHECK_MSG(false, "no copies in this test"); }
  void copy_blocking(void*, const void*, size_t, const char*) override { CHECK_MSG(false, "no copies in this test"); }
  std::shared_ptr<Event> record() override { return nullptr; }
  void wait_for(const std::shared_ptr<Event>&) override {}
  void drain() {
    for (const auto& work : queue_) work();
    queue_.clear();
  }

 private:
  std::vector<std::function<void()>> queue_;
};

// A row of a harness's step. The token log already holds the ids.
struct StepRow {
  int32_t slot, q_len, kv_len;
  int32_t samples = 1;
  int32_t state_from = 0, state_save = 0;  // from: the first tokens of a row start from nothing whatever it says
};

class BackendHarness {
 public:
  static constexpr int kSlots = 8, kCheckpoints = 4, kMaxLen = 320, kBlockSize = 16, kBlocksPerSlot = kMaxLen / kBlockSize;

  BackendHarness(const TinyConfig& config, std::unique_ptr<HostBackend> backend, uint64_t seed)
      : backend_(std::move(backend)), model_(config, *backend_, seed), vocab_(config.vocab) {
    limits_ = {.max_rows = kSlots, .max_step_tokens = 600, .context_length = kMaxLen, .vocab = config.vocab};
    scratch_.resize(*backend_->scratch_bytes(model_.blocks, limits_) / 64 + 2);
    std::memset(static_cast<void*>(scratch_.data()), 0xff, scratch_.size() * 64);  // NaN wherever it is read unwritten
    CHECK(backend_->prepare(model_.blocks, limits_, aligned(scratch_)).ok());
    log.assign(static_cast<size_t>(kSlots) * (kMaxLen + 1), 0);
    sampling.assign(kSlots, {.temperature = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .presence_penalty = 0,
                             .frequency_penalty = 0, .top_k = 0, .num_top_logprobs = -1, .seed = 1, .choice_index = 0,
                             .prompt_len = 0, .num_bias = 0, .num_stop_ids = 0, .min_len = 0});
    bias_ids_.resize(size_t{kSlots} * kMaxLogitBias);
    bias_values_.resize(size_t{kSlots} * kMaxLogitBias);
    stop_ids_.resize(size_t{kSlots} * kMaxStopTokenIds);
    stopped.resize(kSlots);
    sampled.resize(kSlots);
    std::mt19937_64 rng(seed + 1);
    for (int g = 0; g < (config.window > 0 ? 2 : 1); ++g) add_group(config, g, rng);
    if (config.recurrent > 0) add_states(config);
    for (TokenId& id : log) id = static_cast<TokenId>(rng() % static_cast<uint64_t>(config.vocab));
  }

  TokenId* log_of(int slot) { return log.data() + static_cast<size_t>(slot) * (kMaxLen + 1); }

  // Queues one step; decode rows (q_len 1) must come first.
  void queue(const std::vector<StepRow>& rows, Stream& on) {
    rows_.clear();
    Batch batch{};
    for (const StepRow& row : rows) {
      if (row.q_len == 1 && batch.num_decode_rows == static_cast<int32_t>(rows_.size())) ++batch.num_decode_rows;
      const int32_t from = row.q_len == row.kv_len ? kZeroState : row.state_from;
      rows_.push_back({row.slot, batch.num_tokens, row.q_len, row.kv_len, row.samples, from, row.state_save});
      batch.num_tokens += row.q_len;
    }
    batch.num_rows = static_cast<int32_t>(rows_.size());
    batch.rows = rows_.data();
    batch.num_groups = static_cast<int32_t>(groups.size());
    std::copy(groups.begin(), groups.end(), batch.groups);
    batch.state = {log.data(), kMaxLen + 1, sampling.data(), bias_ids_.data(), bias_values_.data(), stop_ids_.data(),
                   stopped.data()};
    batch.sampled = sampled.data();
    batch.states = states;
    backend_->forward(on, batch);
  }

  // Runs one step and returns the logits of the rows that sample, in row order.
  std::vector<std::vector<float>> step(const std::vector<StepRow>& rows) {
    queue(rows, stream);
    stream.drain();
    std::vector<std::vector<float>> logits;
    for (const StepRow& row : rows) {
      if (!row.samples) continue;
      const float* at = backend_->last_logits() + static_cast<int64_t>(logits.size()) * vocab_;
      logits.emplace_back(at, at + vocab_);
    }
    return logits;
  }

  HostBackend& backend() { return *backend_; }

  std::vector<TokenId> log;
  std::vector<RowSampling> sampling;
  std::vector<SampledRow> sampled;
  std::vector<int32_t> stopped;
  std::vector<KvGroupView> groups;
  std::deque<std::vector<int32_t>> tables;  // one a group: [kSlots][kBlocksPerSlot]
  StatePoolView states{};
  DeferredStream stream;

 private:
  struct Line {
    std::byte bytes[64];
  };
  void add_states(const TinyConfig& c) {
    const int64_t layers = int64_t{c.layers} * c.recurrent;
    states.recurrent_stride = layers * c.v_heads * c.k_dim * c.v_dim;
    states.conv_stride = layers * (c.conv_width - 1) * (2 * c.k_heads * c.k_dim + c.v_heads * c.v_dim);
    states.first_checkpoint = kSlots;
    state_values_.assign(static_cast<size_t>((kSlots + kCheckpoints) * (states.recurrent_stride + states.conv_stride)),
                         std::numeric_limits<float>::quiet_NaN());
    states.recurrent = state_values_.data();
    states.conv = states.recurrent + (kSlots + kCheckpoints) * states.recurrent_stride;
  }

  static void* aligned(std::vector<Line>& memory) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  }

  void add_group(const TinyConfig& config, int g, std::mt19937_64& rng) {
    constexpr int kBlocks = kSlots * kBlocksPerSlot + 1;
    auto& table = tables.emplace_back(size_t{kSlots} * kBlocksPerSlot);
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), rng);
    const int dim = model_.head_dim_of(g), layers = model_.layers_of(g);
    auto& pool = pools_.emplace_back(size_t{kBlocks} * 2 * static_cast<size_t>(config.kv_heads * kBlockSize * dim * layers), 0x7fc0);
    groups.push_back({pool.data(), kBlocks, layers, config.kv_heads, dim, kBlockSize, g == 1 ? config.window : 0, table.data(),
                      kBlocksPerSlot});
  }

  std::unique_ptr<HostBackend> backend_;
  TinyModel model_;
  int vocab_;
  StepLimits limits_;
  std::vector<Line> scratch_;
  std::vector<BatchRow> rows_;
  std::vector<TokenId> bias_ids_, stop_ids_;
  std::vector<float> bias_values_;
  std::deque<std::vector<uint16_t>> pools_;
  std::vector<float> state_values_;
};

}  // namespace tailrace
