// AttentionPath: the attention kernels of one kind of GPU, behind the calls that the backend makes.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_extend.h"

namespace tailrace::cuda {

// Both paths share the pool, plan_decode and the scratch. A call's contract is its Hopper namesake's
// (attention_decode.h, attention_extend.h).
struct AttentionPath {
  const char* decode;  // what the boot log says of the kernels
  const char* extend;
  bool tuned;  // tuning tables are of these kernels
  bool (*supported)(int head_dim, int q_heads, int kv_heads);
  cudaError_t (*prepare)(int head_dim);
  int (*decode_ctas)(int head_dim, int group);
  MixedTuning (*mixed_defaults)(int head_dim, int group);
  cudaError_t (*run_decode)(const DecodeParams& params, int ctas, cudaStream_t stream);
  int (*extend_tile_rows)(int head_dim);
  ExtendSplit (*extend_split)(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode);
  int max_extend_parts;  // of all tiles that extend_split cuts; 0: it cuts none
  cudaError_t (*run_extend)(const ExtendParams& params, cudaStream_t stream);
};

// The path of the current device, for a KV pool of kBF16 or kF8E4M3: by the code that this build has for it, so that Hopper
// without Hopper's code is served too; portable: the one of any GPU.
const AttentionPath& attention_path(Format kv_format, bool portable = false);

}  // namespace tailrace::cuda
