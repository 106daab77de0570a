// Extend attention on CUDA: chunks of new tokens over their cached prefix, causal, window and sinks as run-time arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "batch/batch.h"

namespace tailrace::cuda {

// Tiles of all KV heads from `from` on have their keys cut into `parts`, on CTAs of their own.
struct ExtendSplit {
  int parts = 1, from = 0;
};

struct ExtendParams {
  const __nv_bfloat16* q;      // [tokens of the step][q_heads][head_dim]
  __nv_bfloat16* out;          // the same
  const void* pool;            // of the layer: tiles [block][kv_head] (kv_layout.h); this step's K and V are in it already
  const int32_t* block_table;  // [slots][table_stride]
  int64_t table_stride;
  const BatchRow* rows;        // the extend rows
  const int32_t* tile_start;   // [num_rows + 1] query tiles before a row, per KV head: extend_tiles of its q_len
  int num_rows;
  int num_tiles;               // tile_start[num_rows], known to the host: the grid holds no tile without work
  int q_heads, kv_heads, head_dim;
  int window;                  // 0: full; counts the query
  float scale;
  float softcap;               // 0: none
  const float* sinks;          // [q_heads] or null
  ExtendSplit split;
  char* partial = nullptr;     // extend_partial_bytes of the parts, or null without
  unsigned long long* arrivals = nullptr;  // [4 per tile that is cut], zero before the first launch; a launch leaves zeros
  bool late_decode = false;  // the next kernel on the stream may start when this one's CTAs all have (DecodeParams::helped_ctas)
};

// Query rows of a tile: tokens x heads of a group, packed, so that a short chunk fills it and KV is read once a group.
int extend_tile_rows(int head_dim);
inline int extend_tiles(int q_len, int group, int tile_rows) { return (q_len * group + tile_rows - 1) / tile_rows; }

// How a launch's tiles are best cut: all where they are fewer than the CTAs that the GPU holds, else those of the last wave.
// tiles: of all KV heads; kv_tiles: blocks that they see in all; sms: of the GPU. At most kMaxExtendParts parts, so that scratch
// is bounded. A window's tiles are short and stay whole.
inline constexpr int kMaxExtendSplits = 8, kMaxExtendParts = 1024;
ExtendSplit extend_split(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode);
size_t extend_partial_bytes(int head_dim, int parts);

// At boot: loads the kernels of a head dim, so that no launch does.
cudaError_t prepare_extend(int head_dim);
cudaError_t run_extend_hopper(const ExtendParams& params, cudaStream_t stream);

// The same from a pool of e4m3.
ExtendSplit extend_split_fp8(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode);
cudaError_t prepare_extend_fp8(int head_dim);
cudaError_t run_extend_hopper_fp8(const ExtendParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
