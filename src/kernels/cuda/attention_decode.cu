// The decode kernel from a pool of bf16.
#include "kernels/cuda/attention_decode.cuh"

namespace tailrace::cuda {

bool decode_supported(int head_dim, int q_heads, int kv_heads) {
  if (kv_heads <= 0 || q_heads % kv_heads != 0 || head_dim % 8 != 0) return false;
  const int group = q_heads / kv_heads, dim = padded_dim(head_dim);
  return group <= 16 && (dim == 64 || dim == 128 || dim == 256 || (dim == 512 && group <= 8));
}

int decode_ctas(int head_dim, int group) { return ctas_of<false>(head_dim, group); }
MixedTuning mixed_defaults(int head_dim, int group) { return mixed_of<false>(head_dim, group); }
cudaError_t run_decode(const DecodeParams& p, int ctas, cudaStream_t stream) { return run<false>(p, ctas, stream); }

}  // namespace tailrace::cuda
