// Where a KV value lies in a CUDA pool: the order in which tensor cores read it, so that one bulk copy brings a tile.
//   [layer][block][kv_head][K|V][dim / 64][token of the block][dim % 64] bf16 or e4m3
// In bf16 the eight 16-byte chunks of a token's 64 dims are XOR-ed by (token % 8), in e4m3 the four of them by
// (token / 2 % 4): the 128- and 64-byte swizzles of shared memory, stored.
// K and V of one (block, head) are one contiguous run of 2 * 64 * padded_dim values.
#pragma once

#include <cstdint>

namespace tailrace::cuda {

inline constexpr int kBlockTokens = 64;

#ifdef __CUDACC__
#define TAILRACE_HD __host__ __device__ __forceinline__
#else
#define TAILRACE_HD inline
#endif

// Head dims are padded to whole groups of 64 in the pool; the padding is zero.
TAILRACE_HD int padded_dim(int head_dim) { return (head_dim + 63) / 64 * 64; }

// Calls f.template operator()<D>() for the padded head_dim.
template <typename F>
auto by_head_dim(int head_dim, F f) {
  switch (padded_dim(head_dim)) {
    case 64: return f.template operator()<64>();
    case 128: return f.template operator()<128>();
    case 256: return f.template operator()<256>();
    default: return f.template operator()<512>();
  }
}

// Values of one (block, head): K then V.
TAILRACE_HD int64_t kv_tile_values(int dim) { return int64_t{2} * kBlockTokens * dim; }

// Offset of dim d of token t within the K (or V) half of a tile.
TAILRACE_HD int swizzled(int t, int d) {
  return ((d >> 6) * kBlockTokens + t) * 64 + (((((d & 63) >> 3) ^ (t & 7)) << 3) | (d & 7));
}

// The same in e4m3.
TAILRACE_HD int swizzled_fp8(int t, int d) {
  return ((d >> 6) * kBlockTokens + t) * 64 + (((((d & 63) >> 4) ^ ((t >> 1) & 3)) << 4) | (d & 15));
}

// Offset of the tile of (layer, block, head) in its pool; 64-bit throughout.
TAILRACE_HD int64_t kv_tile_offset(int64_t num_blocks, int kv_heads, int dim, int64_t layer, int64_t block, int head) {
  return ((layer * num_blocks + block) * kv_heads + head) * kv_tile_values(dim);
}

}  // namespace tailrace::cuda
