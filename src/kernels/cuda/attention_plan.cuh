// What decode's kernels read of a plan (attention_decode.h), and which keys a query sees.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/kv_layout.h"

namespace tailrace::cuda {

// The first key that the last of kv_len tokens sees.
__device__ __forceinline__ int first_visible(int kv_len, int window) {
  return window > 0 && kv_len > window ? kv_len - window : 0;
}
__device__ __forceinline__ int visible_blocks(int kv_len, int window) {
  return (kv_len + kBlockTokens - 1) / kBlockTokens - first_visible(kv_len, window) / kBlockTokens;
}

__device__ __forceinline__ const unsigned char* plan_at(const DecodePlan* plan, size_t offset) {
  return reinterpret_cast<const unsigned char*>(plan) + offset;
}
__device__ __forceinline__ const DecodeChunk* plan_chunks(const DecodePlan* plan) {
  return reinterpret_cast<const DecodeChunk*>(plan_at(plan, kChunksAt));
}

}  // namespace tailrace::cuda
