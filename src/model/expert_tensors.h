// Where a checkpoint keeps the matrices of a mixture's experts, in any of three spellings, and one expert's rows of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"
#include "weights/checkpoint.h"

namespace tailrace {

enum class ExpertPart : uint8_t { kGate, kUp, kDown };

// One of the three matrices of every expert of a layer:
//   GGUF           experts.{gate,up,down}_proj.weight [experts, rows, cols], .bias [experts, rows]
//   MXFP4          experts.{gate_up,down}_proj_blocks U8 [experts, rows, cols / 32, 16], _scales U8 without the 16
//   16 bits        experts.{gate_up,down}_proj [experts, cols, rows], x from the left
// The last two have biases experts.{gate_up,down}_proj_bias [experts, rows]; rows of gate_up are gate's, up's in turn.
struct ExpertSource {
  TensorView values, scales, bias;          // scales: of the second spelling only
  Format format = Format::kF32;             // of an expert's rows, as copy_expert gives them
  int64_t experts = 0, rows = 0, cols = 0;  // of one matrix
  int64_t first_row = 0, row_step = 1;      // row r is stored row first_row + r * row_step
  bool transposed = false;

  // Whether the rows lie in the file as copy_expert would write them.
  bool in_place() const { return row_step == 1 && !transposed && scales.name.empty(); }
};

// kDataLoss names a tensor that is missing, misshapen or of a type that does not belong there.
Expected<ExpertSource> find_experts(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer,
                                    ExpertPart part);

// What find_experts would describe for random weights: MXFP4 where the configuration says so, else BF16. No data.
ExpertSource dummy_experts(const ModelConfig& config, int32_t layer, ExpertPart part);

// The stored bytes of one expert, those of all parts that share a tensor.
TensorView expert_slice(const TensorView& tensor, int64_t experts, int64_t expert);

// Rows of expert `expert` in source.format: rows * stored_row_bytes(format, cols) bytes.
void copy_expert(const ExpertSource& source, int64_t expert, std::byte* out);

// This part's biases [experts, rows] from the stored ones.
std::vector<float> part_of_biases(const ExpertSource& source, const std::vector<float>& stored);

}  // namespace tailrace
