// Small pieces that kernels of tokens share: sums over a warp, and four floats at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tailrace::cuda {

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

__device__ __forceinline__ void add_scaled(float4& sum, const float4& v, float by) {
  sum.x += v.x * by, sum.y += v.y * by, sum.z += v.z * by, sum.w += v.w * by;
}

__device__ __forceinline__ float component(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ uint32_t component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

}  // namespace tailrace::cuda
