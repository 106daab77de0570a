#include "model/quantization.h"

#include <algorithm>
#include <optional>

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
  if (module.size() <= text.size()) return module == text;
  return (module.starts_with(text) && module[text.size()] == '.') ||
         (module.ends_with(text) && module[module.size() - text.size() - 1] == '.');
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

// NVFP4, the one 4-bit scheme: blocks of 16, a scale of the tensor.
void read_four_bits(ConfigFields& w, const std::string& strategy) {
  if (strategy == "tensor_group" && w.integer_or("group_size", 16, 1, 4096) == 16) return;
  w.fault(StatusCode::kUnsupported, "4-bit floats other than NVFP4 (strategy 'tensor_group', group_size 16) are not "
                                    "supported");
}

void read_compressed_weights(const nlohmann::json& group, ConfigFields& owner, Quantization* out) {
  ConfigFields fields(group, owner.label() + ": config_groups");
  const auto targets = fields.texts("targets");
  if (!out->by_tensor && targets != std::vector<std::string>{"Linear"}) {
    fields.fault(StatusCode::kUnsupported, "targets other than [\"Linear\"] are not supported");
  }
  const nlohmann::json* weights = fields.object("weights");
  owner.fault(fields.status());
  if (!weights) return owner.fault(StatusCode::kUnsupported, "a group without weights is not supported");
  ConfigFields w(*weights, owner.label() + ": weights");
  const std::string strategy = w.text_or("strategy", ""), type = w.text_or("type", "");
  const int64_t bits = w.integer_or("num_bits", 0, 0, 64);
  const bool good_bits = bits == 8 || (out->by_tensor && bits == 4);
  if (type != "float" || !good_bits || !w.flag_or("symmetric", true)) {
    w.fault(StatusCode::kUnsupported, out->by_tensor ? "only symmetric floats of 4 and 8 bits are supported"
                                                     : "only 8-bit symmetric floats are supported");
  }
  if (bits == 4) {
    read_four_bits(w, strategy);
  } else if (strategy == "channel") {
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
  out->by_tensor = format == "nvfp4-pack-quantized" || format == "mixed-precision";
  out->fp8 = !out->by_tensor;
  if (out->fp8 && format != "float-quantized" && format != "naive-quantized") {
    fields.fault(StatusCode::kUnsupported, "format '" + printable(format) + "' is not supported (float-quantized, " +
                                               "nvfp4-pack-quantized and mixed-precision are)");
  }
  if (const nlohmann::json* sparsity = fields.object("sparsity_config");
      sparsity && !sparsity->empty() && sparsity->value("format", nlohmann::json()) != "dense") {
    fields.fault(StatusCode::kUnsupported, "sparsity_config is not supported");
  }
  if (const nlohmann::json* transform = fields.object("transform_config"); transform && !transform->empty()) {
    fields.fault(StatusCode::kUnsupported, "transform_config is not supported");
  }
  const nlohmann::json* groups = fields.object("config_groups");
  if (!groups || groups->empty() || (groups->size() != 1 && !out->by_tensor)) {
    return fields.fault(StatusCode::kUnsupported, "config_groups other than one group are not supported");
  }
  for (const nlohmann::json& group : *groups) {
    if (!group.is_object()) return fields.fault(StatusCode::kDataLoss, "a group is not an object");
    read_compressed_weights(group, fields, out);
  }
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

// The format that a ModelOpt algorithm stores matrices in.
std::optional<Format> format_of_algo(const std::string& algo) {
  if (algo == "FP8" || algo == "FP8_PB_WO" || algo == "FP8_PER_CHANNEL_PER_TOKEN") return Format::kF8E4M3;
  if (algo == "NVFP4" || algo == "W4A16_NVFP4") return Format::kNVFP4;
  return std::nullopt;
}

// quantized_layers: {module: {quant_algo, group_size}}
void read_modules(ConfigFields& fields, Quantization* out) {
  const nlohmann::json* layers = fields.object("quantized_layers");
  if (!layers) return fields.fault(StatusCode::kDataLoss, "quantized_layers is missing");
  for (const auto& [name, entry] : layers->items()) {
    if (!entry.is_object()) return fields.fault(StatusCode::kDataLoss, "quantized_layers: an entry is no object");
    ConfigFields module(entry, fields.label() + ": quantized_layers: " + printable(name));
    const std::string algo = module.text_or("quant_algo", "");
    const std::optional<Format> format = format_of_algo(algo);
    if (!format || (*format == Format::kNVFP4 && module.integer_or("group_size", 16, 1, 4096) != 16)) {
      module.fault(StatusCode::kUnsupported, "quant_algo '" + printable(algo) + "' of that group_size is not " +
                                                 "supported (FP8, and NVFP4 in groups of 16 are)");
    }
    fields.fault(module.status());
    if (!fields.status().ok()) return;
    out->modules[canonical_hf_name(name)] = *format;
  }
}

void read_modelopt(ConfigFields& fields, Quantization* out) {
  const std::string algo = fields.text_or("quant_algo", "");
  if (algo == "MIXED_PRECISION") {
    read_modules(fields, out);
  } else if (algo != "FP8" && format_of_algo(algo) != Format::kNVFP4) {
    fields.fault(StatusCode::kUnsupported,
                 "quant_algo '" + printable(algo) + "' is not supported (FP8, NVFP4 and MIXED_PRECISION are)");
  } else if (algo != "FP8" && fields.integer_or("group_size", 16, 1, 4096) != 16) {
    fields.fault(StatusCode::kUnsupported, "NVFP4 in groups of another size than 16 is not supported");
  }
  out->by_tensor = algo != "FP8";
  out->fp8 = !out->by_tensor;
  out->with_head = out->by_tensor;
  ignore(fields, "ignore", out);
  ignore(fields, "exclude_modules", out);
}

// Linear attention's are named otherwise; its a and b are so narrow that no scheme quantises them.
bool is_projection(std::string_view module) {
  return module.ends_with("_proj") || module.ends_with(".in_proj_qkv") || module.ends_with(".in_proj_z");
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
                 "quant_method '" + printable(method) + "' is not supported (floats of compressed-tensors, fp8, " +
                     "modelopt and mxfp4 are); use another checkpoint or a GGUF file");
  }
  if (!fields.status().ok()) return fail(fields.status());
  return out;
}

bool is_exempt(const Quantization& quantization, const std::string& module) {
  return std::any_of(quantization.ignored.begin(), quantization.ignored.end(),
                     [&](const IgnoredModule& ignored) { return is_ignored(ignored, module); });
}

bool lists(const std::string& entry, const std::string& module) { return is_ignored({entry, nullptr}, module); }

const std::string* listing_of(const Quantization& quantization, const std::string& module) {
  const auto& modules = quantization.modules;
  const auto found =
      std::find_if(modules.begin(), modules.end(), [&](const auto& entry) { return lists(entry.first, module); });
  return found == modules.end() || is_exempt(quantization, module) ? nullptr : &found->first;
}

Format planned_format(const Quantization& quantization, std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (!(quantization.fp8 || quantization.by_tensor) || !name.ends_with(kWeight)) return Format::kBF16;
  const std::string module(name.substr(0, name.size() - kWeight.size()));
  for (const auto& [listed, format] : quantization.modules) {
    if (lists(listed, module)) return format;
  }
  const bool listed_only = !quantization.modules.empty();
  if (listed_only || (!is_projection(module) && !(quantization.with_head && module == "lm_head"))) {
    return Format::kBF16;
  }
  if (is_exempt(quantization, module)) return Format::kBF16;
  return quantization.fp8 ? Format::kF8E4M3 : Format::kNVFP4;
}

bool must_be_fp8(const Quantization& quantization, std::string_view name) {
  return quantization.fp8 && planned_format(quantization, name) == Format::kF8E4M3;
}

bool is_requantized(const Quantization& quantization, std::string_view name, std::string_view head) {
  constexpr std::string_view kWeight = ".weight";
  if (!quantization.dense_to_fp8 || !name.ends_with(kWeight)) return false;
  return name == head || is_projection(name.substr(0, name.size() - kWeight.size()));
}

int64_t scales_per_row(ScaleLayout layout, int64_t cols) {
  return layout == ScaleLayout::kBlock ? (cols + kScaleBlock - 1) / kScaleBlock : 1;
}

ScaleLayout layout_of(const std::vector<int64_t>& shape, int64_t rows) {
  using Shape = std::vector<int64_t>;
  if (shape.empty() || shape == Shape{1}) return ScaleLayout::kTensor;
  return shape == Shape{rows} || shape == Shape{rows, 1} ? ScaleLayout::kChannel : ScaleLayout::kBlock;
}

std::string scale_fault(ScaleLayout layout, const TensorView& scale, int64_t rows, int64_t cols) {
  if (scale.format != Format::kF32 && scale.format != Format::kBF16 && scale.format != Format::kF16) {
    return std::string("is ") + format_traits(scale.format).name + " instead of F32, BF16 or F16";
  }
  using Shape = std::vector<int64_t>;
  const Shape& shape = scale.shape;
  const auto instead = [&](const Shape& wanted) {
    return "has the shape " + shape_text(shape) + " instead of " + shape_text(wanted);
  };
  switch (layout) {
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

std::vector<float> expand_scales(ScaleLayout layout, const std::vector<float>& stored, int64_t rows, int64_t cols) {
  const int64_t per_row = scales_per_row(layout, cols);
  std::vector<float> out(static_cast<size_t>(rows * per_row));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < per_row; ++i) {
      const int64_t from = layout == ScaleLayout::kTensor    ? 0
                           : layout == ScaleLayout::kChannel ? row
                                                             : row / kScaleBlock * per_row + i;
      out[row * per_row + i] = stored[from];
    }
  }
  return out;
}

std::optional<UnneededTensor> why_not_used(std::string_view name, const Quantization& quantization) {
  for (const std::string_view prefix :
       {"model.vision_tower.", "model.vision_embedder.", "model.embed_vision.", "model.audio_tower.",
        "model.embed_audio.", "model.visual.", "model.multi_modal_projector.", "vision_tower.",
        "multi_modal_projector."}) {
    if (name.starts_with(prefix)) return UnneededTensor{std::string(prefix) + "*", "only text is read"};
  }
  if (name.starts_with("mtp.")) return UnneededTensor{"mtp.*", "tokens are made one at a time"};
  if (!quantization.any()) return std::nullopt;
  for (const std::string_view suffix : {".input_scale", ".input_global_scale"}) {
    if (name.ends_with(suffix)) return UnneededTensor{"*" + std::string(suffix), "activations are not quantised"};
  }
  for (const std::string_view suffix : {".k_scale", ".v_scale", ".q_scale", ".prob_scale"}) {
    if (name.ends_with(suffix)) return UnneededTensor{"*" + std::string(suffix), "the KV cache takes no scales"};
  }
  return std::nullopt;
}

}  // namespace tailrace
