// Weight, Norm, Activation: what every block of layers (blocks.h) is made of.
#pragma once

#include <cstdint>

#include "base/format.h"

namespace tailrace {

// y = W x + bias; W is the packed values, times their scales where there are any. Values are laid out by the backend that
// packed them (see Backend::pack); scales and bias are not.
struct Weight {
  Format format = Format::kF32;
  int64_t rows = 0;              // outputs
  int64_t cols = 0;              // inputs (K)
  const void* data = nullptr;    // packed
  const float* bias = nullptr;   // [rows] or null
  const float* scale = nullptr;  // [rows, ceil(cols / scale_cols)], or null: 1
  int64_t scale_cols = 0;        // columns that a scale covers: cols (one scale per row) or 128; 0 without scales

  int64_t scales_per_row() const { return scale_cols > 0 ? (cols + scale_cols - 1) / scale_cols : 0; }
};

// y = x * rsqrt(mean(x^2) + eps) * weight; a "+1" of the architecture is already in `weight`.
struct Norm {
  const float* weight = nullptr;  // [width] fp32, or null for no norm
  float eps = 1e-5f;
};

// a(g) u of a gate g and an up u; the last is ClampedSwiglu's, of experts only.
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu };

}  // namespace tailrace
