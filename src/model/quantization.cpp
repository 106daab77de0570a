#include "model/quantization.h"

#include <algorithm>

#include "model/config_fields.h"
#include "weights/tensor_names.h"

namespace tailrace {
namespace {

constexpr size_t kMaxPattern = 500;

void ignore(ConfigFields& fields, const char* key, Quantization* out) {
  for (const std::string& text : fields.texts(key)) {
    IgnoredModule module{canonical_hf_name(text), nullptr};
    if (text.starts_with("re:")) {
      try {
        if (text.size() > kMaxPattern) throw std::regex_error(std::regex_constants::error_complexity);
        module.pattern = std::make_shared<const std::regex>(text.substr(3));
      } catch (const std::regex_error&) {
        fields.fault(StatusCode::kUnsupported,
                     std::string(key) + ": the pattern " + printable(text) + " cannot be used");
      }
    }
    out->ignored.push_back(std::move(module));
  }
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, after = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, after = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++after;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_ignored(const IgnoredModule& ignored, const std::string& module) {
  if (ignored.pattern) return std::regex_search(module, *ignored.pattern, std::regex_constants::match_continuous);
  const std::string& text = ignored.text;
  if (text.find('*') != std::string::npos) return glob_matches(text, module);
  return module == text || module.starts_with(text + ".") || module.ends_with("." + text);
}

// [128, 128], the only block there are kernels for.
void check_block(const nlohmann::json* block, const char* key, ConfigFields& fields) {
  if (block && *block == nlohmann::json::array({kScaleBlock, kScaleBlock})) return;
  fields.fault(StatusCode::kUnsupported, std::string(key) + " is not supported ([128, 128] is)");
}

const nlohmann::json* member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

void read_compressed_weights(const nlohmann::json& group, ConfigFields& owner, Quantization* out) {
  ConfigFields fields(group, owner.label() + ": config_groups");
  if (const auto targets = fields.texts("targets"); targets != std::vector<std::string>{"Linear"}) {
    fields.fault(StatusCode::kUnsupported, "targets other than [\"Linear\"] are not supported");
  }
  const nlohmann::json* weights = fields.object("weights");
  owner.fault(fields.status());
  if (!weights) return owner.fault(StatusCode::kUnsupported, "a group without weights is not supported");
  ConfigFields w(*weights, owner.label() + ": weights");
  const std::string strategy = w.text_or("strategy", ""), type = w.text_or("type", "");
  if (type != "float" || w.integer_or("num_bits", 0, 0, 64) != 8 || !w.flag_or("symmetric", true)) {
    w.fault(StatusCode::kUnsupported, "only 8-bit symmetric floats are supported");
  }
  if (strategy == "channel") {
    out->layout = ScaleLayout::kChannel;
  } else if (strategy == "block") {
    out->layout = ScaleLayout::kBlock;
    check_block(member(*weights, "block_structure"), "block_structure", w);
  } else if (strategy != "tensor") {
    w.fault(StatusCode::kUnsupported,
            "strategy '" + printable(strategy) + "' is not supported (tensor, channel and block are)");
  }
  owner.fault(w.status());
}

void read_compressed(const nlohmann::json& object, ConfigFields& fields, Quantization* out) {
  out->with_head = true;
  const std::string format = fields.text_or("format", "float-quantized");
  if (format != "float-quantized" && format != "naive-quantized") {
    fields.fault(StatusCode::kUnsupported, "format '" + printable(format) + "' is not supported (float-quantized is)");
  }
  if (const nlohmann::json* sparsity = fields.object("sparsity_config");
      sparsity && !sparsity->empty() && sparsity->value("format", nlohmann::json()) != "dense") {
    fields.fault(StatusCode::kUnsupported, "sparsity_config is not supported");
  }
  if (const nlohmann::json* transform = fields.object("transform_config"); transform && !transform->empty()) {
    fields.fault(StatusCode::kUnsupported, "transform_config is not supported");
  }
  const nlohmann::json* groups = fields.object("config_groups");
  if (!groups || groups->size() != 1 || !groups->begin()->is_object()) {
    return fields.fault(StatusCode::kUnsupported, "config_groups other than one group are not supported");
  }
  read_compressed_weights(*groups->begin(), fields, out);
  ignore(fields, "ignore", out);
}

void read_fp8(const nlohmann::json& object, ConfigFields& fields, Quantization* out) {
  if (const std::string fmt = fields.text_or("fmt", "e4m3"); fmt != "e4m3") {
    fields.fault(StatusCode::kUnsupported, "fmt '" + printable(fmt) + "' is not supported (e4m3 is)");
  }
  if (const nlohmann::json* block = member(object, "weight_block_size")) {
    out->layout = ScaleLayout::kBlock;
    out->suffix = "_scale_inv";
    check_block(block, "weight_block_size", fields);
  }
  ignore(fields, "modules_to_not_convert", out);
  ignore(fields, "ignored_layers", out);
}

void read_modelopt(ConfigFields& fields, Quantization* out) {
  if (const std::string algo = fields.text_or("quant_algo", ""); algo != "FP8") {
    fields.fault(StatusCode::kUnsupported, "quant_algo '" + printable(algo) + "' is not supported (FP8 is)");
  }
  ignore(fields, "ignore", out);
  ignore(fields, "exclude_modules", out);
}

}  // namespace

Expected<Quantization> parse_quantization(const nlohmann::json& object, const std::string& source) {
  if (!object.is_object()) return fail(StatusCode::kDataLoss, source + ": quantization_config is not an object");
  ConfigFields fields(object, source + ": quantization_config");
  Quantization out;
  out.fp8 = true;
  out.suffix = "_scale";
  const std::string method = fields.text_or("quant_method", "");
  if (method == "compressed-tensors") {
    read_compressed(object, fields, &out);
  } else if (method == "fp8") {
    read_fp8(object, fields, &out);
  } else if (method == "modelopt") {
    read_modelopt(fields, &out);
  } else if (method == "mxfp4") {
    out.fp8 = false;
    out.mxfp4 = true;
    ignore(fields, "modules_to_not_convert", &out);
  } else {
    fields.fault(StatusCode::kUnsupported,
                 "quant_method '" + printable(method) + "' is not supported (8-bit floats of compressed-tensors, fp8 " +
                     "and modelopt, and mxfp4 are); use another checkpoint or a GGUF file");
  }
  if (!fields.status().ok()) return fail(fields.status());
  return out;
}

bool is_exempt(const Quantization& quantization, const std::string& module) {
  return std::any_of(quantization.ignored.begin(), quantization.ignored.end(),
                     [&](const IgnoredModule& ignored) { return is_ignored(ignored, module); });
}

bool must_be_fp8(const Quantization& quantization, std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (!quantization.fp8 || !name.ends_with(kWeight)) return false;
  const std::string module(name.substr(0, name.size() - kWeight.size()));
  if (!module.ends_with("_proj") && !(quantization.with_head && module == "lm_head")) return false;
  return !is_exempt(quantization, module);
}

int64_t scales_per_row(const Quantization& quantization, int64_t cols) {
  return quantization.layout == ScaleLayout::kBlock ? (cols + kScaleBlock - 1) / kScaleBlock : 1;
}

std::string scale_fault(const Quantization& quantization, const TensorView& scale, int64_t rows, int64_t cols) {
  if (scale.format != Format::kF32 && scale.format != Format::kBF16 && scale.format != Format::kF16) {
    return std::string("is ") + format_traits(scale.format).name + " instead of F32, BF16 or F16";
  }
  using Shape = std::vector<int64_t>;
  const Shape& shape = scale.shape;
  const auto instead = [&](const Shape& wanted) {
    return "has the shape " + shape_text(shape) + " instead of " + shape_text(wanted);
  };
  switch (quantization.layout) {
    case ScaleLayout::kTensor:
      return shape.empty() || shape == Shape{1} ? "" : instead({1});
    case ScaleLayout::kChannel:
      return shape == Shape{rows, 1} || shape == Shape{rows} ? "" : instead({rows, 1});
    case ScaleLayout::kBlock:
      break;
  }
  const Shape blocks = {(rows + kScaleBlock - 1) / kScaleBlock, (cols + kScaleBlock - 1) / kScaleBlock};
  return shape == blocks ? "" : instead(blocks);
}

std::vector<float> expand_scales(const Quantization& quantization, const std::vector<float>& stored, int64_t rows,
                                 int64_t cols) {
  const int64_t per_row = scales_per_row(quantization, cols);
  std::vector<float> out(static_cast<size_t>(rows * per_row));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < per_row; ++i) {
      const int64_t from = quantization.layout == ScaleLayout::kTensor    ? 0
                           : quantization.layout == ScaleLayout::kChannel ? row
                                                                          : row / kScaleBlock * per_row + i;
      out[row * per_row + i] = stored[from];
    }
  }
  return out;
}

const char* why_not_used(std::string_view name) {
  if (name.ends_with(".input_scale")) return "activations are not quantised";
  for (const std::string_view suffix : {".k_scale", ".v_scale", ".q_scale", ".prob_scale"}) {
    if (name.ends_with(suffix)) return "the KV cache is BF16";
  }
  return nullptr;
}

}  // namespace tailrace
