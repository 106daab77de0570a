// The portable kernels from a pool of bf16.
#include "kernels/cuda/attention_portable.cuh"

namespace tailrace::cuda {

bool portable_attention_supported(int head_dim, int q_heads, int kv_heads) {
  if (kv_heads <= 0 || q_heads % kv_heads != 0 || head_dim % 8 != 0 || head_dim <= 0) return false;
  const int dim = padded_dim(head_dim);
  return q_heads / kv_heads <= 16 && (dim == 64 || dim == 128 || dim == 256 || dim == 512);
}
int portable_extend_tile_rows(int) { return 64; }

cudaError_t prepare_portable_attention(int head_dim) { return prepare_kernels<false>(head_dim); }
int portable_decode_ctas(int head_dim, int) { return decode_ctas_of<false>(head_dim); }
cudaError_t run_decode_portable(const DecodeParams& p, int ctas, cudaStream_t stream) {
  return launch_decode<false>(p, ctas, stream);
}
cudaError_t run_extend_portable(const ExtendParams& p, cudaStream_t stream) { return launch_extend<false>(p, stream); }

}  // namespace tailrace::cuda
