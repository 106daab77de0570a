// y = W x on the CPU, on weights in their stored precision: packing, activation preparation and the tile kernels.
// The result of a row of activations does not depend on how many rows are multiplied together (same order of sums), so
// a token's linear layers are bitwise equal alone and batched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/blocks.h"
#include "weights/tensor.h"

namespace tailrace::cpu {

// The form of the activations that a weight format multiplies.
enum class InputKind : uint8_t {
  kInt8,  // quantised formats: blocks of 32 int8 with fp32 scale and block sums
  kF32,   // F32, F16, BF16 and F8_E4M3
};
InputKind input_kind(Format format);

// Output rows of one tile: work is handed to threads in tiles; the last may be partial.
inline constexpr int kRowTile = 16;

Expected<size_t> packed_bytes(const TensorView& tensor);
// Undoes rope_interleaved by permuting rows. dst is 64-byte aligned.
Status pack(const TensorView& tensor, void* dst);
// Backend::pack_random: BF16 and F8_E4M3, normal; MXFP4 and NVFP4, all codes alike and one scale.
Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst);

// Bytes of m activations of width k in `kind`'s form (64-byte aligned rows).
size_t input_bytes(InputKind kind, int64_t m, int64_t k);
// Converts rows [row_begin, row_end) of x [m, k] (stride in floats) into `input`.
void prepare_input(InputKind kind, const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end,
                   int64_t k, void* input);

// y[i, r] = sum_k W[r, k] input[i, k] + bias[r] for i in [0, m) and r in the row tiles [tile_begin, tile_end).
// y: [m, y_stride] fp32. One thread's work; callers split the tiles (and large m) over threads.
void linear(const Weight& weight, const void* input, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* y, int64_t y_stride);

// out[0, cols) = row `row` of the packed weight, dequantised (embedding lookup).
void lookup_row(const Weight& weight, int64_t row, float* out);

// "avx512_vnni", "avx2" or "portable": what this machine runs; tests force each with set_isa_for_test.
const char* isa_name();
bool set_isa_for_test(const char* name);  // false when this machine cannot run it

}  // namespace tailrace::cpu
