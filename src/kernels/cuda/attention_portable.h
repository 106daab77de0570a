// Attention on GPUs without Hopper's instructions: both kernels over the same pool, plan and parameters as there.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_extend.h"

namespace tailrace::cuda {

// As their namesakes of attention_decode.h and attention_extend.h; shared memory of at most 99 KiB a CTA (8.6, 8.9,
// 12.0).
bool portable_attention_supported(int head_dim, int q_heads, int kv_heads);
// At boot: loads the kernels of a head dim, so that no launch does.
cudaError_t prepare_portable_attention(int head_dim);
// CTAs that the device holds at once, asked once. No CTA waits for another, so fewer or more are as correct.
int portable_decode_ctas(int head_dim, int group);
// Two launches: the plan's chunks, then the merge of units that have several.
cudaError_t run_decode_portable(const DecodeParams& params, int ctas, cudaStream_t stream);

int portable_extend_tile_rows(int head_dim);
// Tiles are not cut; fails with cudaErrorInvalidValue where the parameters ask for it.
cudaError_t run_extend_portable(const ExtendParams& params, cudaStream_t stream);

// The same from a pool of e4m3.
cudaError_t prepare_portable_attention_fp8(int head_dim);
int portable_decode_ctas_fp8(int head_dim, int group);
cudaError_t run_decode_portable_fp8(const DecodeParams& params, int ctas, cudaStream_t stream);
cudaError_t run_extend_portable_fp8(const ExtendParams& params, cudaStream_t stream);

}  // namespace tailrace::cuda
