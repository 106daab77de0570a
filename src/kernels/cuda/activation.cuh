// The activations of gated MLPs.
#pragma once

#include <cuda_runtime.h>

namespace tailrace::cuda {

// SiLU, or GELU by its tanh approximation (Hendrycks and Gimpel 2016).
__device__ __forceinline__ float activate(float v, bool gelu) {
  if (!gelu) return v / (1.0f + __expf(-v));
  const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
  return 0.5f * v * (1.0f + tanhf(inner));
}

}  // namespace tailrace::cuda
