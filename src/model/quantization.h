// What config.json says of a checkpoint's 8-bit matrices, and the tensors of scales that go with them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
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

// F8_E4M3 matrices whose value is stored value * scale; activations are not quantised here, whatever the file proposes.
struct Quantization {
  bool fp8 = false;
  bool mxfp4 = false;        // no 8-bit matrices; those of experts are MXFP4 unless ignored, all else keeps 16 bits
  ScaleLayout layout = ScaleLayout::kTensor;
  std::string suffix;        // of the scales' tensor, after the matrix's name: "_scale" or "_scale_inv"
  bool with_head = false;    // lm_head is 8-bit too, unless ignored; else the checkpoint may choose
  std::vector<IgnoredModule> ignored;
};

// `object` is quantization_config: compressed-tensors (float-quantized), fp8 (Hugging Face and vLLM) or modelopt (FP8).
// kUnsupported names what is not computed here; kDataLoss a value that is missing or no number or list.
Expected<Quantization> parse_quantization(const nlohmann::json& object, const std::string& source);

// Whether the scheme's list of exceptions names `module` or something that it is part of.
bool is_exempt(const Quantization& quantization, const std::string& module);

// Whether the scheme stores the model's tensor `name` as F8_E4M3: projections, and the head if it says so.
bool must_be_fp8(const Quantization& quantization, std::string_view name);

// Values of a row of scales for `cols` columns as kernels take them: one, or one per 128 columns.
int64_t scales_per_row(const Quantization& quantization, int64_t cols);

// Empty if `scale` has a shape for a matrix [rows, cols] and a type that scales come in; else what it should be.
std::string scale_fault(const Quantization& quantization, const TensorView& scale, int64_t rows, int64_t cols);

// Stored scales (fp32, one of the layouts above) to [rows, scales_per_row].
std::vector<float> expand_scales(const Quantization& quantization, const std::vector<float>& stored, int64_t rows,
                                 int64_t cols);

// Why a tensor that such checkpoints carry is left alone, e.g. for ...input_scale; null: it is not one of those.
const char* why_not_used(std::string_view name);

}  // namespace tailrace
