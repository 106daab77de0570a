// Qwen3.5 and 3.6: x += mixer(norm(x)); x += mlp(norm(x)). Three layers of linear attention by the gated delta rule to
// one of full attention, whose output has a gate for each value; the MLP is dense, or a mixture with a shared expert. All
// norms are (1 + w) but that of the linear attention's output.
#include "model/qwen3_5.h"

#include <string>
#include <vector>

#include "model/layers.h"
#include "weights/tensor.h"

namespace tailrace {
namespace {

// By layer_types where the file has them, else each full_attention_interval-th layer attends fully.
void read_layers(ConfigFields& fields, ModelConfig* config) {
  const int64_t interval = fields.integer_or("full_attention_interval", 4, 1, 1000);
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && types.size() != static_cast<size_t>(config->layers)) {
    return fields.fault(StatusCode::kDataLoss, "layer_types has " + std::to_string(types.size()) + " entries for " +
                                                   std::to_string(config->layers) + " layers");
  }
  bool attends = false;
  for (int32_t layer = 0; layer < config->layers; ++layer) {
    bool full = (layer + 1) % interval == 0;
    if (!types.empty()) {
      full = types[layer] == "full_attention";
      if (!full && types[layer] != "linear_attention") {
        fields.fault(StatusCode::kUnsupported, "layer type '" + printable(types[layer]) + "' is not supported");
      }
    }
    config->recurrent.push_back(!full);
    attends |= full;
  }
  if (!attends) fields.fault(StatusCode::kUnsupported, "a model without a layer of full attention is not supported");
}

void read_linear_attention(ConfigFields& fields, LinearAttentionConfig* linear) {
  const auto size = [&](const char* key, int64_t fallback, int64_t highest) {
    return static_cast<int32_t>(fields.integer_or(key, fallback, 1, highest));
  };
  linear->k_heads = size("linear_num_key_heads", 16, 1024);
  linear->v_heads = size("linear_num_value_heads", 32, 1024);
  linear->k_dim = size("linear_key_head_dim", 128, 1024);
  linear->v_dim = size("linear_value_head_dim", 128, 1024);
  linear->conv_width = static_cast<int32_t>(fields.integer_or("linear_conv_kernel_dim", 4, 2, 64));
  if (linear->v_heads % linear->k_heads != 0) {
    fields.fault(StatusCode::kDataLoss, "linear_num_value_heads is no multiple of linear_num_key_heads");
  }
}

}  // namespace

void read_qwen35(ConfigFields& fields, ModelConfig* config) {
  config->qk_norm = config->norm_plus_one = config->attention_gate = true;
  read_layers(fields, config);
  read_linear_attention(fields, &config->linear);
  if (!fields.flag_or("attn_output_gate", true)) {
    fields.fault(StatusCode::kUnsupported, "attention without attn_output_gate is not supported");
  }
  if (config->qkv_bias || config->o_bias) fields.fault(StatusCode::kUnsupported, "attention_bias is not supported");
  if (config->architecture != Architecture::kQwen35Moe) return;
  config->experts = static_cast<int32_t>(fields.integer_or("num_experts", 256, 1, 4096));
  config->experts_per_token = static_cast<int32_t>(fields.integer_or("num_experts_per_tok", 8, 1, 4096));
  config->expert_intermediate = fields.integer_or("moe_intermediate_size", 512, 1, 1 << 20);
  config->expert_halves = config->shared_expert = true;
  config->experts_name = "mlp.experts";
  config->router_name = "mlp.gate";
}

BlockList qwen35_forward(const Model& model, WeightLoader& loader) {
  DecoderLayers layers(model, loader);
  BlockList blocks;
  blocks.push_back(layers.embed());
  for (int layer = 0; layer < model.config.layers; ++layer) {
    if (model.config.recurrent[layer]) {
      blocks.push_back(layers.gated_delta(layer));
    } else {
      blocks.push_back(layers.attn_in(layer));
      blocks.push_back(layers.attention(layer));
      blocks.push_back(layers.attn_out(layer));
    }
    if (model.config.experts > 0) {
      blocks.push_back(layers.moe(layer, "post_attention_layernorm"));
    } else {
      blocks.push_back(layers.mlp(layer, "post_attention_layernorm"));
    }
  }
  blocks.push_back(layers.head());
  return blocks;
}

}  // namespace tailrace
