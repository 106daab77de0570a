// The architecture document: every number that shapes a model, read from config.json or GGUF metadata and checked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/blocks.h"
#include "model/quantization.h"
#include "weights/checkpoint.h"

namespace tailrace {

enum class Architecture : uint8_t {
  kLlama, kMistral, kQwen2, kQwen3, kGemma3, kGptOss, kGemma4, kQwen35, kQwen35Moe
};
const char* architecture_name(Architecture architecture);

enum class RopeScaling : uint8_t {
  kNone,
  kLinear,    // all frequencies divided by factor
  kLlama3,    // low frequencies divided by factor, high ones kept, a ramp between
  kYarn,      // as above with a ramp over dimensions, and cos/sin scaled by attention_factor
  kProportional,  // the first `rotated` frequencies, divided by factor; the other pairs of the head do not turn
  kDivisors,  // each frequency divided by its own number (GGUF's rope_freqs.weight)
};

// One rotary embedding of the model (Gemma has two).
struct RopeConfig {
  double theta = 10000.0;
  int rotary_dim = 0;               // dims of a head that rotate, in NeoX pairs (i, i + rotary_dim / 2); even
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;              // linear, llama3, yarn, proportional; >= 1
  double low_freq_factor = 1.0;     // llama3
  double high_freq_factor = 4.0;    // llama3
  double original_context = 0;      // llama3, yarn: the context the model was first trained on
  double beta_fast = 32.0;          // yarn
  double beta_slow = 1.0;           // yarn
  bool truncate = true;             // yarn: round the ramp's bounds outwards to whole dims
  double attention_factor = 1.0;    // yarn, resolved: multiplies cos and sin
  int rotated = 0;                  // proportional: pairs of a head that turn, at most rotary_dim / 2
  std::vector<float> divisors;      // kDivisors: [rotary_dim / 2]
};

// inv_freq [rotary_dim / 2] of a rotary embedding, scaling applied (in double, rounded once).
std::vector<float> rope_inv_freq(const RopeConfig& rope);

// YaRN: frequencies of index <= low are kept, of index >= high divided by factor, with a ramp between.
struct YarnRange {
  double low = 0, high = 0;
};
YarnRange yarn_range(const RopeConfig& rope);
// 0.1 mscale ln(factor) + 1: YaRN's scale on cos and sin where the configuration gives none.
double yarn_attention_factor(double factor, double mscale = 1.0);

struct HeadShape {
  int32_t kv_heads = 0, head_dim = 0;
};

// Linear attention by the gated delta rule (kernels/blocks.h: GatedDeltaBlock).
struct LinearAttentionConfig {
  int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  int32_t conv_width = 0;

  int64_t values() const { return int64_t{v_heads} * v_dim; }
  int64_t channels() const { return int64_t{2} * k_heads * k_dim + values(); }
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;

  int64_t vocab = 0;         // rows of the embedding and of the head
  int64_t hidden = 0;        // width of the residual stream
  int32_t layers = 0;
  int32_t q_heads = 0;       // a multiple of kv_heads
  int32_t kv_heads = 0;
  int32_t head_dim = 0;      // q_proj is [q_heads * head_dim, hidden], k and v [kv_heads * head_dim, hidden]
  HeadShape full;            // of layers without a window, where others are as above (Gemma 4); zeros: all alike
  int64_t intermediate = 0;  // gate and up are [intermediate, hidden], down is [hidden, intermediate]
  int32_t context = 0;       // tokens the model is made for: max_position_embeddings

  // Attention
  std::vector<int32_t> window;        // [layers]: 0 full, else the keys a query sees, itself included
  std::vector<int32_t> rope_of_layer; // [layers]: index into ropes
  std::vector<RopeConfig> ropes;      // 1 or 2
  float attention_scale = 1.0f;       // multiplies q k^T
  float attention_softcap = 0.0f;     // 0: none
  bool qkv_bias = false;              // {q,k,v}_proj.bias exist
  bool o_bias = false;                // o_proj.bias exists
  bool sinks = false;                 // self_attn.sinks [q_heads] exists: joins the softmax denominator
  bool qk_norm = false;               // {q,k}_norm.weight [head_dim] exist
  bool v_norm = false;                // each head of v is normed, without weights
  bool full_keys_are_values = false;  // layers without a window have no v_proj: v is k before its norm
  bool attention_gate = false;        // q_proj has 2 head_dim rows a head: q's, then those of a gate on the output

  // Linear attention in place of attention
  std::vector<bool> recurrent;        // [layers], or empty: no layer
  LinearAttentionConfig linear;

  // Norms
  float norm_eps = 1e-5f;
  bool norm_plus_one = false;         // the stored norm weights are w of (1 + w): add 1 when loading
  bool post_norms = false;            // Gemma: attention and MLP outputs are normed before they join the residual
  bool layer_scalar = false;          // layer_scalar [1] of each layer multiplies the residual after it

  // MLP, embedding, head
  Activation activation = Activation::kSilu;
  bool mlp_bias = false;              // {gate,up,down}_proj.bias exist

  // Mixture of experts in place of every MLP, or beside it
  int32_t experts = 0;                // 0: none
  int32_t experts_per_token = 0;      // 1..experts
  int64_t expert_intermediate = 0;    // an expert's gate and up are [expert_intermediate, hidden]
  bool expert_bias = false;           // every expert's matrices have biases
  bool expert_halves = false;         // one tensor of gate and up: gate's rows first; else rows in turn, x from the left
  std::string experts_name;           // within a layer: "mlp.experts" or "experts"
  std::string router_name;            // within a layer: "mlp.router"
  bool shared_expert = false;         // mlp.shared_expert, of `intermediate` rows, with a gate of its own, for all tokens
  ClampedSwiglu expert_activation;    // of gpt-oss; all others take `activation`

  bool tied_embeddings = false;       // the head is model.embed_tokens.weight
  float embed_scale = 1.0f;           // multiplies embeddings; Gemma: sqrt(hidden) rounded to bfloat16
  float final_softcap = 0.0f;         // 0: none

  Quantization quantization;          // of matrices whose scales are tensors of their own; GGUF has none

  std::vector<int32_t> eos_ids;       // sorted, unique; may be empty
  int32_t bos_id = -1;                // -1: none

  // Of a layer with this window (0: full).
  HeadShape heads(int32_t layer_window) const {
    return layer_window == 0 && full.head_dim > 0 ? full : HeadShape{kv_heads, head_dim};
  }
};

// Reads the configuration of a checkpoint, whichever container it has. kUnsupported: an architecture, activation or
// rope type that this build does not compute (the message lists those it does); kDataLoss: missing, out-of-range or
// inconsistent values, by key.
Expected<ModelConfig> load_model_config(const Checkpoint& checkpoint);

// The two spellings, for tests and for callers without weights. `source` names the file in messages.
Expected<ModelConfig> parse_hf_config(const nlohmann::json& config, const std::string& source);
Expected<ModelConfig> parse_gguf_config(const GgufFile& gguf);

}  // namespace tailrace
