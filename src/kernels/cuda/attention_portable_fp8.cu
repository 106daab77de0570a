// The portable kernels from a pool of e4m3.
#include "kernels/cuda/attention_portable.cuh"

namespace tailrace::cuda {

cudaError_t prepare_portable_attention_fp8(int head_dim) { return prepare_kernels<true>(head_dim); }
int portable_decode_ctas_fp8(int head_dim, int) { return decode_ctas_of<true>(head_dim); }
cudaError_t run_decode_portable_fp8(const DecodeParams& p, int ctas, cudaStream_t stream) {
  return launch_decode<true>(p, ctas, stream);
}
cudaError_t run_extend_portable_fp8(const ExtendParams& p, cudaStream_t stream) { return launch_extend<true>(p, stream); }

}  // namespace tailrace::cuda
