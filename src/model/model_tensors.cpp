#include "model/model_tensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "model/expert_tensors.h"
#include "weights/tensor.h"

namespace tailrace {
namespace {

constexpr size_t kMaxListed = 8;  // names in one message

void add_linear(const std::string& name, int64_t rows, int64_t cols, bool bias, std::vector<ModelTensor>* out) {
  out->push_back({name + ".weight", {rows, cols}});
  if (bias) out->push_back({name + ".bias", {rows}});
}

// What a mixture has besides the MLP and the experts.
void add_gemma4_router(const ModelConfig& config, const std::string& prefix, std::vector<ModelTensor>* out) {
  for (const char* name : {"pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
                           "post_feedforward_layernorm_2"}) {
    out->push_back({prefix + name + ".weight", {config.hidden}});
  }
  add_linear(prefix + "router.proj", config.experts, config.hidden, false, out);
  out->push_back({prefix + "router.scale", {config.hidden}});
  out->push_back({prefix + "router.per_expert_scale", {config.experts}});
}

void add_norm(const std::string& name, int64_t width, std::vector<ModelTensor>* out) {
  out->push_back({name + ".weight", {width}});
}

void add_attention(const ModelConfig& config, int32_t window, const std::string& prefix,
                   std::vector<ModelTensor>* out) {
  const int64_t hidden = config.hidden;
  const HeadShape heads = config.heads(window);
  const int64_t q_rows = static_cast<int64_t>(config.q_heads) * heads.head_dim;
  const int64_t kv_rows = static_cast<int64_t>(heads.kv_heads) * heads.head_dim;
  add_linear(prefix + "q_proj", config.attention_gate ? 2 * q_rows : q_rows, hidden, config.qkv_bias, out);
  add_linear(prefix + "k_proj", kv_rows, hidden, config.qkv_bias, out);
  const bool has_values = window > 0 || !config.full_keys_are_values;
  if (has_values) add_linear(prefix + "v_proj", kv_rows, hidden, config.qkv_bias, out);
  if (config.qk_norm) {
    add_norm(prefix + "q_norm", heads.head_dim, out);
    add_norm(prefix + "k_norm", heads.head_dim, out);
  }
  add_linear(prefix + "o_proj", hidden, q_rows, config.o_bias, out);
  if (config.sinks) out->push_back({prefix + "sinks", {config.q_heads}});
}

void add_linear_attention(const ModelConfig& config, const std::string& prefix, std::vector<ModelTensor>* out) {
  const LinearAttentionConfig& linear = config.linear;
  add_linear(prefix + "in_proj_qkv", linear.channels(), config.hidden, false, out);
  add_linear(prefix + "in_proj_z", linear.values(), config.hidden, false, out);
  add_linear(prefix + "in_proj_b", linear.v_heads, config.hidden, false, out);
  add_linear(prefix + "in_proj_a", linear.v_heads, config.hidden, false, out);
  out->push_back({prefix + "conv1d.weight", {linear.channels(), 1, linear.conv_width}});
  out->push_back({prefix + "A_log", {linear.v_heads}});
  out->push_back({prefix + "dt_bias", {linear.v_heads}});
  add_norm(prefix + "norm", linear.v_dim, out);
  add_linear(prefix + "out_proj", config.hidden, linear.values(), false, out);
}

void add_mlp(const ModelConfig& config, const std::string& prefix, std::vector<ModelTensor>* out) {
  add_linear(prefix + "gate_proj", config.intermediate, config.hidden, config.mlp_bias, out);
  add_linear(prefix + "up_proj", config.intermediate, config.hidden, config.mlp_bias, out);
  add_linear(prefix + "down_proj", config.hidden, config.intermediate, config.mlp_bias, out);
}

// The MLP, what a mixture has besides its experts, or both.
void add_mixture(const ModelConfig& config, const std::string& prefix, std::vector<ModelTensor>* out) {
  if (config.experts == 0) return add_mlp(config, prefix + "mlp.", out);
  if (config.architecture == Architecture::kGemma4) {
    add_gemma4_router(config, prefix, out);
    return add_mlp(config, prefix + "mlp.", out);
  }
  add_linear(prefix + config.router_name, config.experts, config.hidden, config.expert_bias, out);
  if (!config.shared_expert) return;
  add_mlp(config, prefix + "mlp.shared_expert.", out);
  add_linear(prefix + "mlp.shared_expert_gate", 1, config.hidden, false, out);
}

void add_layer(const ModelConfig& config, int32_t layer, std::vector<ModelTensor>* out) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  add_norm(prefix + "input_layernorm", config.hidden, out);
  if (!config.recurrent.empty() && config.recurrent[layer]) {
    add_linear_attention(config, prefix + "linear_attn.", out);
  } else {
    add_attention(config, config.window[layer], prefix + "self_attn.", out);
  }
  add_norm(prefix + "post_attention_layernorm", config.hidden, out);
  if (config.post_norms) {
    add_norm(prefix + "pre_feedforward_layernorm", config.hidden, out);
    add_norm(prefix + "post_feedforward_layernorm", config.hidden, out);
  }
  if (config.layer_scalar) out->push_back({prefix + "layer_scalar", {1}});
  add_mixture(config, prefix, out);
}

// "a, b and 5 more"
std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > kMaxListed) out += " and " + std::to_string(names.size() - kMaxListed) + " more";
  return out;
}

// The names of the tensors that a parameter is read from go to `used`, a matrix and its format to `matrices`.
TensorFault check_parameter(const Checkpoint& checkpoint, const Quantization& quantization, const ModelTensor& wanted,
                            std::set<std::string>* used, std::map<std::string, Format>* matrices) {
  TensorFinder finder(checkpoint);
  if (wanted.shape.size() == 2) {
    const MatrixSource source = find_matrix(finder, quantization, wanted.name, wanted.shape[0], wanted.shape[1]);
    used->insert({wanted.name, source.values.name, source.block_scales.name, source.scales.name});
    if (finder.ok()) matrices->insert({wanted.name, source.format});
    return finder.fault();
  }
  const Format format = finder.get(wanted.name, wanted.shape).format;
  used->insert(wanted.name);
  if (finder.ok() && format == Format::kU8) {
    finder.add_fault(TensorFault::Kind::kOther, wanted.name + " is U8, bytes without a meaning of their own");
  } else if (finder.ok() && format == Format::kF8E4M3) {
    finder.add_fault(TensorFault::Kind::kOther, wanted.name + " is F8_E4M3, which has no meaning without scales");
  }
  return finder.fault();
}

bool is_quantised(Format format) { return format == Format::kNVFP4 || format == Format::kF8E4M3; }

// Schemes quantise the matrices of a branch together: where one is and another, which no exception names, is not, a writer
// stopped half-way. Returns what is wrong, or "".
std::string half_quantised(const Quantization& quantization, const std::map<std::string, Format>& matrices) {
  const std::vector<std::vector<std::string>> together = {
      {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"},
      {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
      {"in_proj_qkv.weight", "in_proj_z.weight", "out_proj.weight"}};
  for (const auto& [name, format] : matrices) {
    if (is_quantised(format) || planned_format(quantization, name) == Format::kBF16) continue;
    const size_t at = name.rfind('.', name.rfind('.') - 1) + 1;
    for (const std::vector<std::string>& parts : together) {
      if (std::find(parts.begin(), parts.end(), name.substr(at)) == parts.end()) continue;
      for (const std::string& part : parts) {
        const auto other = matrices.find(name.substr(0, at) + part);
        if (other == matrices.end() || !is_quantised(other->second)) continue;
        return name + " is " + format_traits(format).name + ", though " + other->first + " is " +
               format_traits(other->second).name + " and quantization_config does not exempt it";
      }
    }
  }
  return "";
}

// What quantized_layers lists is quantised: an entry whose matrices all have 16 bits says what the checkpoint is not.
// Returns what is wrong, or "".
std::string listed_in_vain(const Quantization& quantization, const std::map<std::string, Format>& matrices) {
  const auto module_of = [](const std::string& name) { return name.substr(0, name.rfind(".weight")); };
  for (const auto& [name, format] : matrices) {
    if (is_quantised(format)) continue;
    const std::string* entry = listing_of(quantization, module_of(name));
    if (entry == nullptr) continue;
    const bool any = std::any_of(matrices.begin(), matrices.end(), [&](const auto& other) {
      return is_quantised(other.second) && lists(*entry, module_of(other.first));
    });
    if (!any) {
      return name + " is " + format_traits(format).name + ", though quantized_layers lists " + printable(*entry);
    }
  }
  return "";
}

Status check_experts(const Checkpoint& checkpoint, const ModelConfig& config, std::set<std::string>* used,
                     std::map<std::string, Format>* matrices) {
  for (int32_t layer = 0; config.experts > 0 && layer < config.layers; ++layer) {
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      const Expected<ExpertSource> source = find_experts(checkpoint, config, layer, part);
      if (!source) return source.error();
      used->insert({source->values.name, source->scales.name, source->bias.name});
      for (const MatrixSource& matrix : source->each) {
        used->insert({matrix.values.name, matrix.block_scales.name, matrix.scales.name});
        matrices->insert({matrix.values.name, matrix.format});
      }
    }
  }
  return Status();
}

}  // namespace

const char* head_tensor(const ModelConfig& config) {
  return config.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

std::vector<ModelTensor> model_tensors(const ModelConfig& config) {
  std::vector<ModelTensor> out = {{"model.embed_tokens.weight", {config.vocab, config.hidden}}};
  for (int32_t layer = 0; layer < config.layers; ++layer) add_layer(config, layer, &out);
  out.push_back({"model.norm.weight", {config.hidden}});
  if (!config.tied_embeddings) out.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return out;
}

Expected<std::vector<std::string>> check_model_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::string> missing, misshapen, other;
  const Quantization& quantization = config.quantization;
  std::set<std::string> used = {"rope_freqs.weight"};  // read with the configuration
  std::map<std::string, Format> matrices;
  for (const ModelTensor& wanted : model_tensors(config)) {
    const TensorFault fault = check_parameter(checkpoint, quantization, wanted, &used, &matrices);
    if (fault.kind == TensorFault::Kind::kMissing) missing.push_back(fault.text);
    if (fault.kind == TensorFault::Kind::kMisshapen) misshapen.push_back(fault.text);
    if (fault.kind == TensorFault::Kind::kOther) other.push_back(fault.text);
  }
  const auto bad = [&](const std::string& reason) {
    return fail(StatusCode::kDataLoss, checkpoint.path() + ": " + reason);
  };
  if (!missing.empty()) return bad("missing tensors: " + listed(missing));
  if (!misshapen.empty()) return bad("misshapen tensors: " + listed(misshapen));
  if (!other.empty()) {
    const size_t more = other.size() - 1;
    return bad("tensor " + other[0] + (more > 0 ? ", and " + std::to_string(more) + " more like it" : ""));
  }
  if (const Status status = check_experts(checkpoint, config, &used, &matrices); !status.ok()) {
    return bad(status.message());
  }
  for (const auto& check : {half_quantised, listed_in_vain}) {
    if (const std::string fault = check(quantization, matrices); !fault.empty()) return bad("tensor " + fault);
  }
  std::vector<std::string> unused;
  std::map<std::string, size_t> unneeded;  // by kind and reason
  for (const TensorView& tensor : checkpoint.tensors()) {
    if (used.contains(tensor.name)) continue;
    if (const std::optional<UnneededTensor> kind = why_not_used(tensor.name, quantization)) {
      ++unneeded[kind->names + " (" + kind->why + "; "];
    } else {
      unused.push_back(tensor.name);
    }
  }
  for (const auto& [kind, count] : unneeded) unused.push_back(kind + std::to_string(count) + " tensors)");
  return unused;
}

}  // namespace tailrace
