// The extend kernel from a pool of e4m3.
#include "kernels/cuda/attention_extend_hopper.cuh"

namespace tailrace::cuda {

ExtendSplit extend_split_fp8(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode) {
  return split_of<true>(head_dim, tiles, kv_tiles, window, sms, beside_decode);
}
cudaError_t prepare_extend_fp8(int head_dim) { return prepare_both<true>(head_dim); }
cudaError_t run_extend_hopper_fp8(const ExtendParams& p, cudaStream_t stream) { return run<true>(p, stream); }

}  // namespace tailrace::cuda
