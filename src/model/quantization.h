// What config.json says of a checkpoint's quantised matrices, and the layouts of the scales that go with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/tensor.h"

namespace tailrace {

enum class ScaleLayout : uint8_t {
  kTensor,   // one: [] or [1]
  kChannel,  // one per row: [rows, 1] or [rows]
  kBlock,    // one per 128 rows and 128 columns: [ceil(rows / 128), ceil(cols / 128)]
};
inline constexpr int64_t kScaleBlock = 128;

// A module that keeps 16 bits, as the file spells it: a name, the last parts of one, a pattern with '*', or "re:...".
struct IgnoredModule {
  std::string text;
  std::shared_ptr<const std::regex> pattern;  // of "re:...", else null
};

// F8_E4M3 matrices whose value is stored value * scale, NVFP4 ones, or MXFP4 experts; activations are not quantised
// here, whatever the file proposes.
struct Quantization {
  bool fp8 = false;          // every projection that is not ignored is F8_E4M3, its scales laid out as `layout` says
  bool mxfp4 = false;        // no 8-bit matrices; those of experts are MXFP4 unless ignored, all else keeps 16 bits
  bool by_tensor = false;    // NVFP4, and mixtures with it: each matrix is what its tensors are, nothing is demanded
  ScaleLayout layout = ScaleLayout::kTensor;
  std::string suffix;        // of the scales' tensor, after the matrix's name: "_scale" or "_scale_inv"
  bool with_head = false;    // lm_head is quantised too, unless ignored; else the checkpoint may choose
  std::vector<IgnoredModule> ignored;
  std::map<std::string, Format> modules;  // by_tensor: what the file says of each, '*' allowed; empty: all are NVFP4
  bool dense_to_fp8 = false;  // --requantize dense=fp8, not of the file: see is_requantized

  bool any() const { return fp8 || mxfp4 || by_tensor; }
};

// `object` is quantization_config: compressed-tensors (float-quantized, nvfp4-pack-quantized, mixed-precision), fp8
// (Hugging Face and vLLM), modelopt (FP8, NVFP4, MIXED_PRECISION) or mxfp4. kUnsupported names what is not computed here;
// kDataLoss a value that is missing or no number or list.
Expected<Quantization> parse_quantization(const nlohmann::json& object, const std::string& source);

// Whether the scheme's list of exceptions names `module` or something that it is part of.
bool is_exempt(const Quantization& quantization, const std::string& module);
// The first entry of Quantization::modules that names `module` or something that it is part of; null: none does, or an
// exception names it.
const std::string* listing_of(const Quantization& quantization, const std::string& module);
// Whether an entry of that list names `module` or something that it is part of.
bool lists(const std::string& entry, const std::string& module);

// In which format the scheme stores the model's tensor `name`: F8_E4M3 or NVFP4 projections, and the head if it says so;
// BF16 all else, and what MXFP4 makes of experts (expert_tensors.h).
Format planned_format(const Quantization& quantization, std::string_view name);
// Whether a checkpoint that stores `name` otherwise is broken.
bool must_be_fp8(const Quantization& quantization, std::string_view name);

// Whether --requantize dense=fp8 makes F8_E4M3 of the matrix `name` if it is stored in 16 bits or more: projections and
// the head, `head`, which is the embedding too where they are tied. Not routers, norms, and what experts have.
bool is_requantized(const Quantization& quantization, std::string_view name, std::string_view head);

// Values of a row of scales for `cols` columns as kernels take them: one, or one per 128 columns.
int64_t scales_per_row(ScaleLayout layout, int64_t cols);

// The layout that a tensor of scales of this shape has for a matrix of `rows`.
ScaleLayout layout_of(const std::vector<int64_t>& shape, int64_t rows);

// Empty if `scale` has a shape for a matrix [rows, cols] and a type that scales come in; else what it should be.
std::string scale_fault(ScaleLayout layout, const TensorView& scale, int64_t rows, int64_t cols);

// Stored scales (fp32, one of the layouts above) to [rows, scales_per_row].
std::vector<float> expand_scales(ScaleLayout layout, const std::vector<float>& stored, int64_t rows, int64_t cols);

// A kind of tensors that checkpoints carry and nothing here reads.
struct UnneededTensor {
  std::string names;  // e.g. "*.input_scale", "model.vision_tower.*"
  const char* why;
};
// Null: the tensor is not one of those.
std::optional<UnneededTensor> why_not_used(std::string_view name, const Quantization& quantization);

}  // namespace tailrace
