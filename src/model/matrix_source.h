// Where a checkpoint keeps one matrix: its values and the tensors of scales that go with them, in whatever spelling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/quantization.h"
#include "model/tensor_finder.h"

namespace tailrace {

// The matrix M.weight [rows, cols]:
//   F8_E4M3                    M.weight, M.weight_scale or M.weight_scale_inv: one, a row's, or a block's of 128 x 128
//   NVFP4, ModelOpt            M.weight U8 [rows, cols / 2], M.weight_scale F8_E4M3 [rows, cols / 16], M.weight_scale_2
//   NVFP4, compressed-tensors  M.weight_packed and M.weight_scale alike, M.weight_global_scale, which divides
//   all other formats          M.weight
struct MatrixSource {
  TensorView values;
  TensorView block_scales;                    // NVFP4's; else without a name
  TensorView scales;                          // without a name where there are none
  Format format = Format::kF32;               // of the rows that copy_matrix gives
  ScaleLayout layout = ScaleLayout::kTensor;  // of `scales`
  bool divides = false;                       // values are divided by `scales`
  bool requantized = false;                   // values are wider than `format`: quantised, a scale a row, when packed
  int64_t rows = 0, cols = 0;

  bool scaled() const { return requantized || !scales.name.empty(); }
  // The tensors that its rows are read from.
  std::vector<TensorView> stored() const;
  // Whether the first of them is the rows, in its own format.
  bool in_place() const { return block_scales.name.empty(); }
  size_t packed_rows_bytes() const { return stored_row_bytes(format, cols) * static_cast<size_t>(rows); }
};

// What is there decides; `quantization` says how scales lie and what must be there. A fault, kept by `finder`, names
// the tensor that is missing, misshapen, of a type that does not belong there, or stored otherwise than it must be.
MatrixSource find_matrix(TensorFinder& finder, const Quantization& quantization, const std::string& name, int64_t rows,
                         int64_t cols);

// What find_matrix would describe for random weights in the planned format. No data; scales are one for the matrix.
MatrixSource dummy_matrix(const Quantization& quantization, const std::string& name, int64_t rows, int64_t cols);

// The rows in source.format, packed_rows_bytes() of them, from the data of `stored`: source.stored(), or what was read.
void copy_matrix(const MatrixSource& source, const std::vector<TensorView>& stored, std::byte* out);

// --requantize: F8_E4M3 rows of a matrix in 16 bits or more, each with the scale of its largest value over 448, or 1 for
// zeros. Not of scales already there.
void requantize_to_fp8(MatrixSource* source);
// `rows` of such a matrix from `stored`, in source.values.format: values to `out` [rows, cols], scales [rows]. kDataLoss: a
// value is not finite.
Status requantize_rows(const MatrixSource& source, const std::byte* stored, int64_t rows, std::byte* out, float* scales);

// kDataLoss if a stored value or a scale of a block is a NaN. `rows`: `bytes` of the rows in source.format from row
// `first` on.
Status check_numbers(const MatrixSource& source, const std::byte* rows, size_t bytes, int64_t first = 0);

// kDataLoss if a stored scale is no finite number above 0; those of rows and blocks may be 0, as those of zeros are.
Status check_scales(const MatrixSource& source, const std::vector<float>& stored);

// The scales as kernels take them, [rows, scales_per_row], from the stored ones.
std::vector<float> scales_of(const MatrixSource& source, std::vector<float> stored);

}  // namespace tailrace
