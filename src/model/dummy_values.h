// Random values in place of a checkpoint's, in the formats that it would have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weights/tensor.h"

namespace tailrace {

// Of values whose scales are tensors of their own: mid-range in E4M3, 448 is 14 of it.
inline constexpr float kDummyScaledDeviation = 32.0f;
inline bool is_scaled(Format format) { return format == Format::kF8E4M3 || format == Format::kNVFP4; }

// Of all other matrices' values: keeps activations finite through many layers.
float dummy_deviation(int64_t cols);

// tensor.bytes of seeded values: BF16 or F8_E4M3, normal; MXFP4 and NVFP4, all codes alike.
std::vector<std::byte> dummy_values(const TensorView& tensor, float mean, float deviation, uint64_t seed);

}  // namespace tailrace
