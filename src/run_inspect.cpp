// `tailrace inspect`: what a model is, what it would take and which code would serve it, without loading the weights.
#include <cstdio>

#include "engine_setup.h"
#include "output/output_format.h"
#include "run.h"

namespace tailrace {
namespace {

void print_mlp(const ModelConfig& c) {
  const char* activation = c.activation == Activation::kSilu ? "silu" : "gelu_tanh";
  if (c.experts > 0 && c.expert_bias) {
    std::printf("moe              %d experts, %d a token, intermediate %lld, clamped swiglu (alpha %g, limit %g)\n",
                c.experts, c.experts_per_token, static_cast<long long>(c.expert_intermediate),
                c.expert_activation.alpha, c.expert_activation.limit);
    return;
  }
  if (c.experts > 0) {
    std::printf("moe              %d experts, %d a token, intermediate %lld, %s, beside a %s\n", c.experts,
                c.experts_per_token, static_cast<long long>(c.expert_intermediate), activation,
                c.shared_expert ? "shared expert with a gate" : "dense branch");
  }
  std::printf("mlp              intermediate %lld, %s\n", static_cast<long long>(c.intermediate), activation);
}

void print_architecture(const ModelConfig& c) {
  std::printf("architecture     %s, %d layers, hidden %lld, vocabulary %lld, context %d\n", architecture_name(c.architecture),
              c.layers, static_cast<long long>(c.hidden), static_cast<long long>(c.vocab), c.context);
  std::printf("attention        %d query heads, %d KV heads, head dim %d, scale %g%s%s%s\n", c.q_heads, c.kv_heads,
              c.head_dim, c.attention_scale, c.qkv_bias ? ", biases on q k v" : "", c.qk_norm ? ", q and k normed" : "",
              c.sinks ? ", sinks" : "");
  int full = 0, window = 0, recurrent = 0;
  for (size_t layer = 0; layer < c.window.size(); ++layer) {
    const bool linear = !c.recurrent.empty() && c.recurrent[layer];
    (linear ? recurrent : c.window[layer] == 0 ? full : window)++;
  }
  if (recurrent > 0) {
    std::printf("layers           %d full%s, %d of linear attention\n", full,
                c.attention_gate ? " with gates on their output" : "", recurrent);
    std::printf("linear attention gated delta rule, %d key heads of %d, %d value heads of %d, convolution of %d\n",
                c.linear.k_heads, c.linear.k_dim, c.linear.v_heads, c.linear.v_dim, c.linear.conv_width);
  }
  if (window > 0) {
    int32_t width = 0;
    for (int32_t w : c.window) width = std::max(width, w);
    std::printf("layers           %d full, %d with a window of %d tokens\n", full, window, width);
    if (c.full.head_dim > 0) {
      std::printf("full layers      %d KV heads, head dim %d%s\n", c.full.kv_heads, c.full.head_dim,
                  c.full_keys_are_values ? ", keys that are the values" : "");
    }
  }
  for (const RopeConfig& rope : c.ropes) {
    static const char* const kNames[] = {"none", "linear", "llama3", "yarn", "proportional",
                                         "divisors"};
    std::printf("rope             theta %g over %d dims, scaling %s\n", rope.theta, rope.rotary_dim,
                kNames[static_cast<int>(rope.scaling)]);
  }
  print_mlp(c);
  std::printf("embeddings       %s\n", c.tied_embeddings ? "tied with the head" : "apart from the head");
}

}  // namespace

void print_model_report(const ModelReport& report) {
  print_architecture(report.config);
  std::printf("\nweights, packed in their stored formats\n");
  for (const auto& [format, bytes] : report.bytes_by_format) {
    std::printf("  %-16s %10.1f MiB\n", format.c_str(), static_cast<double>(bytes) / (1 << 20));
  }
  std::printf("\nmemory ledger\n%s", format_ledger(report.memory).c_str());
  std::printf("\nblocks\n");
  for (const std::string& line : report.decisions) std::printf("  %s\n", line.c_str());
  for (const std::string& note : report.memory.notes) std::printf("note: %s\n", note.c_str());
  if (!report.unused_tensors.empty()) {
    std::printf("warning: nothing uses");
    const char* before = " ";
    for (const std::string& name : report.unused_tensors) std::printf("%s%s", before, name.c_str()), before = ", ";
    std::printf("\n");
  }
}

int run_inspect(const InspectConfig& config) {
  const auto text = load_text(config.serve);  // as serve does: what that refuses is a fault here too
  if (!text) return bad_input(text.error());
  const auto output = settle_output_format(config.serve.model.tool_call_parser, config.serve.model.reasoning_parser, **text);
  if (!output) return bad_input(output.error());
  const auto report = inspect_model(engine_setup(config.serve, **text));
  if (!report) return bad_input(report.error());
  std::printf("model            %s\n", config.serve.model.path.c_str());
  const EngineOptions& engine = config.serve.engine;
  const bool gpu = engine.device == DeviceChoice::kCuda;
  std::printf("device           %s%s%s\n", gpu ? "" : "CPU", gpu || engine.device_reason.empty() ? "" : "; no GPU: ",
              engine.device_reason.c_str());
  std::printf("text             %d tokens, %s\n", (*text)->tokenizer->vocab_size(),
              (*text)->chat_template ? "a chat template" : (*text)->no_template_reason.c_str());
  print_model_report(*report);
  std::printf("answers          %s\n", describe(*output).c_str());
  std::fflush(stdout);  // before the verdict, where both go to one file
  return report->memory.fits.ok() ? 0 : bad_input(report->memory.fits);
}

}  // namespace tailrace
