#include "weights/tensor_names.h"

#include <algorithm>

namespace tailrace {
namespace {

struct Renaming {
  std::string_view from, to;
};

constexpr Renaming kTopLevel[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Renaming kInLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
};

// Gemma norms before and after both halves of a layer, so that the MLP's first norm has a name of its own.
constexpr Renaming kInGemmaLayer[] = {
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

template <size_t N>
std::string_view lookup(const Renaming (&table)[N], std::string_view from) {
  for (const Renaming& renaming : table) {
    if (renaming.from == from) return renaming.to;
  }
  return {};
}

}  // namespace

std::string canonical_gguf_name(std::string_view name, std::string_view architecture) {
  constexpr std::string_view kLayerPrefix = "blk.";
  const size_t last_dot = name.rfind('.');
  if (last_dot == std::string_view::npos) return std::string(name);
  const std::string_view stem = name.substr(0, last_dot), suffix = name.substr(last_dot);  // suffix: .weight, .bias
  if (!stem.starts_with(kLayerPrefix)) {
    const std::string_view renamed = lookup(kTopLevel, stem);
    return renamed.empty() ? std::string(name) : std::string(renamed) + std::string(suffix);
  }
  const std::string_view rest = stem.substr(kLayerPrefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view layer = rest.substr(0, dot), part = rest.substr(dot + 1);
  if (part == "attn_sinks" && suffix == ".weight") return "model.layers." + std::string(layer) + ".self_attn.sinks";
  std::string_view renamed;
  if (architecture.starts_with("gemma")) renamed = lookup(kInGemmaLayer, part);
  if (renamed.empty()) renamed = lookup(kInLayer, part);
  if (renamed.empty()) return std::string(name);
  return "model.layers." + std::string(layer) + "." + std::string(renamed) + std::string(suffix);
}

std::string canonical_hf_name(std::string_view name) {
  constexpr Renaming kPrefixes[] = {
      {"model.language_model.", "model."},
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
  };
  std::string out(name);
  for (const Renaming& prefix : kPrefixes) {
    if (!name.starts_with(prefix.from)) continue;
    out = std::string(prefix.to) + std::string(name.substr(prefix.from.size()));
    break;
  }
  // Some put Gemma 4's experts into a module of their own within the layer.
  constexpr std::string_view kOwnModule = ".moe.experts.";
  if (const size_t at = out.find(kOwnModule); at != std::string::npos) out.replace(at, kOwnModule.size(), ".experts.");
  return out;
}

}  // namespace tailrace
