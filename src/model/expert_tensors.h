// Where a checkpoint keeps the matrices of a mixture's experts, in any of five spellings, and one expert's rows of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/matrix_source.h"
#include "model/model_config.h"
#include "weights/checkpoint.h"

namespace tailrace {

enum class ExpertPart : uint8_t { kGate, kUp, kDown };
// "gate_proj", "up_proj" or "down_proj".
const char* projection_name(ExpertPart part);

// One of the three matrices of every expert of a layer, E being experts_name:
//   each its own   E.0.{gate,up,down}_proj.weight [rows, cols] and so on, as find_matrix has them
//   GGUF           E.{gate,up,down}_proj.weight [experts, rows, cols], .bias [experts, rows]
//   MXFP4          E.{gate_up,down}_proj_blocks U8 [experts, rows, cols / 32, 16], _scales U8 without the 16
//   16 bits        E.{gate_up,down}_proj [experts, cols, rows], x from the left
//   16 bits        E.{gate_up,down}_proj [experts, rows, cols] (expert_halves)
// Biases of the last three are E.{gate_up,down}_proj_bias [experts, rows]. Rows of gate_up are gate's and up's in turn,
// or in the last spelling all of gate's, then all of up's.
struct ExpertSource {
  std::vector<MatrixSource> each;           // the first spelling; the tensors below are then unset
  TensorView values, scales, bias;          // scales: MXFP4's; bias without a name where there are none
  Format format = Format::kF32;             // of an expert's rows, as copy_expert gives them
  int64_t experts = 0, rows = 0, cols = 0;  // of one matrix
  int64_t first_row = 0, row_step = 1;      // row r is stored row first_row + r * row_step
  int64_t stored_rows = 0;                  // of one expert in its tensor
  bool transposed = false;

  // The tensors that one expert's rows are read from, cut to that expert, and to its part where that is in one piece.
  std::vector<TensorView> stored(int64_t expert) const;
  // Whether the first of them is the rows as copy_expert would write them.
  bool in_place() const;
  bool scaled() const { return !each.empty() && each[0].scaled(); }
};

// kDataLoss names a tensor that is missing, misshapen or of a type that does not belong there.
Expected<ExpertSource> find_experts(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer,
                                    ExpertPart part);

// Puts the shared expert's matrix behind the experts' as one more, in the first spelling. False, and nothing is
// changed, where its shape, its format or its scales' layout is not theirs, or theirs are not in one piece each.
bool join_shared_expert(const MatrixSource& shared, ExpertSource* source);

// What find_experts would describe for random weights in the planned format. No data.
ExpertSource dummy_experts(const ModelConfig& config, int32_t layer, ExpertPart part);

// Rows of an expert in source.format, rows * stored_row_bytes(format, cols) bytes, from the data of `stored`: its
// source.stored(), or what was read.
void copy_expert(const ExpertSource& source, const std::vector<TensorView>& stored, std::byte* out);

// kDataLoss if a value or a scale in those rows is not finite, where the format has such.
Status check_expert(const ExpertSource& source, int64_t expert, const std::byte* rows);

// This part's biases [experts, rows] from the stored ones.
std::vector<float> part_of_biases(const ExpertSource& source, const std::vector<float>& stored);

}  // namespace tailrace
