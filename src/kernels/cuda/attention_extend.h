// Extend attention on CUDA: chunks of new tokens over their cached prefix, causal, window and sinks as run-time arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "batch/batch.h"

namespace tailrace::cuda {

struct ExtendParams {
  const __nv_bfloat16* q;      // [tokens of the step][q_heads][head_dim]
  __nv_bfloat16* out;          // the same
  const __nv_bfloat16* pool;   // of the layer: tiles [block][kv_head] (kv_layout.h); this step's K and V are in it already
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
};

// Query rows of a tile: tokens x heads of a group, packed, so that a short chunk fills it and KV is read once a group.
int extend_tile_rows(int head_dim);
inline int extend_tiles(int q_len, int group, int tile_rows) { return (q_len * group + tile_rows - 1) / tile_rows; }

cudaError_t run_extend_hopper(const ExtendParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
