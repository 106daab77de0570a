// The kernels of one instruction set, and which of them this machine runs.
#pragma once

#include <cstdint>

#include "base/format.h"
#include "kernels/cpu/linear_layout.h"

namespace tailrace::cpu {

// The arguments of linear(), flat: per-ISA files use no shared inline code.
struct LinearTask {
  Format format;
  const uint8_t* data;
  int64_t rows, cols;
  const float* bias;
  const float* scale;  // as Weight has it: of F8_E4M3, and NVFP4's per row
  int64_t scale_cols;
  const void* input;
  int64_t m, tile_begin, tile_end;
  float* y;
  int64_t y_stride;
};

struct LinearKernels {
  const char* name;
  void (*linear)(const LinearTask& task);
  void (*quantise_row)(const float* x, int64_t k, InputBlock* out);  // k a multiple of 32
};

// Null where the kernels are not built in or the machine cannot run them.
const LinearKernels* avx512_kernels();
const LinearKernels* avx2_kernels();
const LinearKernels* portable_kernels();

}  // namespace tailrace::cpu
